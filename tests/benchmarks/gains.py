"""Benchmark of correct kernels that use a trick to look fast: their times on a GPU with and without the trick."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from cheat_files import files  # noqa: E402

from archive.records import Evaluation  # noqa: E402
from evolve import wiring  # noqa: E402
from evolve.engines.engine import Job  # noqa: E402


def main() -> None:
    tricks = [(file.name, file.kernel) for file in files("gains") if file.kernel and "cuda" in file.devices]
    engine = wiring.engine("cuda")
    try:
        for name, trick in tricks:
            plain = trick.with_knobs({"TRICK": 0})
            found = {e.kernel_id: e for e in engine.evaluate([Job(trick, trick.op), Job(plain, plain.op)])}
            for line in _lines(name, found[trick.id], found[plain.id]):
                print(line, flush=True)
    finally:
        engine.close()


def _lines(name: str, trick: Evaluation, plain: Evaluation) -> list[str]:
    if not trick.passed:
        return [f"{name:24} {trick.outcome}: {trick.log[:80]}"]
    honest = {m.workload: m.median_us for m in plain.measurements}
    return [
        f"{name:24} {m.workload:50} {m.median_us:8.2f} us, without {honest[m.workload]:8.2f}: "
        f"{m.median_us / honest[m.workload] - 1:+.1%}"
        for m in trick.measurements
        if m.workload in honest
    ]


if __name__ == "__main__":
    main()
