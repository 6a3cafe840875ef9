"""Commands in their own process, started as a user starts them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TWICE = str(ROOT / "tests" / "samples" / "twice.py")


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment, without settings of evolve and of models, and with `extra`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "EVOLVE"))}
    return {**own, "PYTHONPATH": f"{ROOT}:{own.get('PYTHONPATH', '')}", "COLUMNS": "120", **(extra or {})}


def start(folder: Path, *arguments: str, extra: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "evolve", *arguments],
        cwd=folder,
        env=environment(extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_restore_interrupts,  # noqa: PLW1509 - no thread of the tests holds a lock that this could need
    )


def _restore_interrupts() -> None:
    """Restore SIGINT: a shell's background processes ignore it, and so would commands started by tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(folder: Path, *arguments: str, extra: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command; return its exit code and everything that it printed."""
    process = start(folder, *arguments, extra=extra)
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, output
