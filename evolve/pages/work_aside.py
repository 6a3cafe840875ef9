"""The work of workloads, read by another process: ops need PyTorch, which would stay in the server's memory."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from archive import plain
from archive.records import DeviceInfo
from evolve.pages.roofline import Work, work_of

SECONDS = 120.0
Wanted = tuple[str, DeviceInfo]


@dataclass
class WorkAside:
    """The work of ops on devices, each read once. Several threads may ask at the same time."""

    known: dict[Wanted, Mapping[str, Work]] = field(default_factory=dict)
    reading: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, op: str, device: DeviceInfo) -> Mapping[str, Work]:
        self.read([(op, device)])
        return self.known.get((op, device), {})

    def read(self, wanted: Iterable[Wanted]) -> None:
        """Read what is not known yet. What cannot be read counts as unknown, so that pages lack a roofline only."""
        with self.reading:
            missing = [one for one in dict.fromkeys(wanted) if one not in self.known]
            if missing:
                self.known |= dict(zip(missing, _read(missing), strict=True))


def _read(wanted: list[Wanted]) -> list[Mapping[str, Work]]:
    given = json.dumps([(op, asdict(device)) for op, device in wanted])
    try:
        answer = subprocess.run(
            [sys.executable, "-m", __name__], input=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=SECONDS, check=True,
        ).stdout  # fmt: skip
        found = json.loads(answer)
    except (OSError, ValueError, subprocess.SubprocessError):
        return [{} for _ in wanted]
    return [{key: plain.record(Work, work) for key, work in of_op.items()} for of_op in found]


def main() -> None:
    """Answer for the ops and devices on standard input."""
    wanted: list[tuple[str, dict[str, Any]]] = json.load(sys.stdin)
    works = [work_of(op, plain.record(DeviceInfo, device)) for op, device in wanted]
    print(json.dumps([{key: asdict(work) for key, work in of_op.items()} for of_op in works]))


if __name__ == "__main__":
    main()
