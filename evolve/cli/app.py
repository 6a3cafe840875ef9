"""Entry point: runs a command and turns errors, signals and a closed output into messages and exit codes."""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence

from evolve.cli.signals import Stopped, raising_stopped

CORRECT_IT = "correct the file, then give the same command again"
OK, NOT_FOUND, WRONG_USE, BROKEN_PIPE = 0, 1, 2, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a replaced stream may not be a text file
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with raising_stopped():
            return _run(arguments)
    except Stopped as stopped:
        return stopped.exit_code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        # imported inside the try, because Ctrl-C may arrive while modules load
        from evolve.cli.commands import application

        given = sys.argv[1:] if arguments is None else arguments
        app = application(given)
        if arguments is None:  # this command is all that the process runs
            gc.freeze()  # modules are never garbage, so collections need not search them
        app(given, prog_name="evolve")
        sys.stdout.flush()
    except SystemExit as ended:
        return _exit_code(ended)
    except BrokenPipeError:
        return _close_output()
    except Exception as error:
        if not (explained := _explanation(error)):
            raise
        from evolve.report.words import complain

        complain(*explained)
        return WRONG_USE
    return OK


def _explanation(error: Exception) -> tuple[str, str] | None:
    """Return the message and the hint for an error that the user can correct, or None for any other error."""
    from archive import ArchiveError
    from archive.plan import PlanError
    from evolve.errors import UserError
    from reference_ops.catalog import CatalogError

    match error:
        case UserError():
            return str(error), error.hint
        case ArchiveError():
            from evolve.wiring import archive_hint

            return str(error), archive_hint(error, "check the path, or name another with --archive or EVOLVE_ARCHIVE")
        case PlanError():
            return f"a kernel cannot be read: {error}", "correct its plan; `evolve show` prints a valid one"
        case CatalogError():
            message, _, hint = str(error).partition(". ")
            return message, hint or CORRECT_IT
        case OSError(filename=str() as path, strerror=str() as reason):
            return f"{path} cannot be used: {reason}", "check the path, its permissions and the free disk space"
    # compared by name, because only the package `archive` may import sqlite3
    of_sqlite = type(error).__module__ == "sqlite3"
    hint = "stop other evolve processes, and check the free disk space"
    return (f"the archive cannot be used: {error}", hint) if of_sqlite else None


def _exit_code(ended: SystemExit) -> int:
    if isinstance(ended.__context__, BrokenPipeError):  # rich and typer turn a closed output into an exit with status 1
        return _close_output()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_output()
    return ended.code if isinstance(ended.code, int) else OK if ended.code is None else NOT_FOUND


def _close_output() -> int:
    """Redirect standard output to os.devnull after its reader has closed it, so that Python's last flush succeeds."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
