"""Script that enters the sandbox and prints, as JSON, the actions that still succeed.

Its arguments are its own folder and, for a worker that uses a GPU, `gpu`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from evolve.engines import sandbox


def works(action: Callable[[], object]) -> bool:
    try:
        action()
    except (OSError, MemoryError):
        return False
    return True


def main() -> None:
    own, parent = Path(sys.argv[1]), os.getppid()
    sandbox.enter(sandbox.Bounds((own,), memory_bytes=2**28, gpu="gpu" in sys.argv))
    environ = Path(f"/proc/{parent}/environ")
    able = {
        "write in its own folder": works(lambda: (own / "new").write_text("x")),
        "rename in its own folder": works(lambda: (own / "new").rename(own / "newer")),
        "write beside it": works(lambda: (own.parent / "new").write_text("x")),
        "remove beside it": works((own.parent / "precious").unlink),
        "write in the home": works(lambda: (Path.home() / "new").write_text("x")),
        "read a visible file in the home": works((Path.home() / "notes").read_text),
        "read a hidden file in the home": works((Path.home() / ".secret").read_text),
        "read in a hidden folder of the home": works((Path.home() / ".ssh" / "id").read_text),
        "read its parent's environment": works(environ.read_bytes),
        "signal its parent": works(lambda: os.kill(parent, 0)),
        "import": works(lambda: __import__("colorsys")),
        "run a program": works(lambda: subprocess.run([sys.executable, "-c", ""], check=True)),
        "write to /dev/null": works(lambda: Path(os.devnull).write_text("x")),
        "talk through a socket pair": works(socket.socketpair),
        "open an internet socket": works(lambda: socket.socket(socket.AF_INET)),
        "open an internet socket over IPv6": works(lambda: socket.socket(socket.AF_INET6)),
        "open a packet socket": works(lambda: socket.socket(socket.AF_PACKET)),
        "open a local socket": works(lambda: socket.socket(socket.AF_UNIX)),
        "take a little memory": works(lambda: bytearray(2**26)),
        "take a lot of memory": works(lambda: bytearray(2**29)),
        "write a huge file": works(lambda: os.truncate(own / "newer", 2**31)),
    }
    print(json.dumps(able), flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    main()
