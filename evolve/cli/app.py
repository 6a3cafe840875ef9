"""The entry point: runs a command, and turns every way in which one can end into words and an exit code."""

import contextlib
import os
import sys
from collections.abc import Sequence

from evolve.cli.signals import Stopped, raising_stopped

OK, NOT_FOUND, WRONG_USE, BROKEN_PIPE = 0, 1, 2, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream that is not a file keeps its ways
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with raising_stopped():
            return _finished(arguments)
    except Stopped as stopped:
        return stopped.exit_code


def _finished(arguments: Sequence[str] | None) -> int:
    try:
        # Imported here, so that Ctrl-C while the modules load ends as quietly as at any other moment.
        from evolve.cli.commands import app

        app(arguments, prog_name="evolve")
        sys.stdout.flush()
    except SystemExit as ended:
        return _code(ended)
    except BrokenPipeError:
        return _without_reader()
    except Exception as error:
        if not (said := _said(error)):
            raise
        message, hint = said
        from evolve.report.words import complain

        complain(message, hint)
        return WRONG_USE
    return OK


def _said(error: Exception) -> tuple[str, str] | None:
    """What happened and what to do, for errors that are the user's to put right."""
    from archive.plan import PlanError
    from archive.store import ArchiveError
    from evolve.errors import UserError

    match error:
        case UserError():
            return str(error), error.hint
        case ArchiveError():
            return str(error), "--archive or EVOLVE_ARCHIVE names another archive"
        case PlanError():
            return f"a kernel cannot be read: {error}", "correct its plan; `evolve show` prints one that is right"
    # These are known by name, because the catalog would import torch, and only the store knows its database.
    if type(error).__module__ == "sqlite3":
        return f"the archive cannot be used: {error}", "is another evolve writing to it, or is the disk full?"
    if type(error).__name__ == "CatalogError":
        message, _, hint = str(error).partition(". ")
        return message, hint or "`evolve ops` lists what there is"
    return None


def _code(ended: SystemExit) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _without_reader()
    return ended.code if isinstance(ended.code, int) else OK if ended.code is None else NOT_FOUND


def _without_reader() -> int:
    """Whoever read our output has left: so do we, and the interpreter's own last flush must not complain."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
