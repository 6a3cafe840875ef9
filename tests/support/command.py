"""Runs the command line as a user does: in a process of its own, in an empty folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TWICE = str(ROOT / "tests" / "samples" / "twice.py")


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
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
        preexec_fn=_hearing,  # noqa: PLW1509 - no thread of ours holds a lock that this could wait for
    )


def _hearing() -> None:
    """What a shell starts in the background is deaf to Ctrl-C, tests and what they start included."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(folder: Path, *arguments: str, extra: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit status, and everything that was printed."""
    process = start(folder, *arguments, extra=extra)
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, output
