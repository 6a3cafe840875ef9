"""Detection by class: evaluates wrong and honest kernels of `tests/cheats` again and again and prints a table.

    python tests/benchmarks/detection.py --rounds 10 [--device emulated] [--only special,scale]

Each round draws new seeds and shapes. Kernels that only a confirmation finds are left out.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from cheat_files import CLASSES, CheatFile, files  # noqa: E402

from evolve.engines.engine import Job  # noqa: E402
from evolve.engines.local import LocalEngine  # noqa: E402

HONEST = "honest"
SECONDS = {"compile": 120.0, "run": 20.0, "check": 120.0, "baseline": 120.0, "time": 120.0}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--device", default="emulated")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--only", default="", help="parts of names of classes or kernels, separated by commas")
    asked = options.parse_args()
    corpus = [
        file
        for file in (*files("kernels"), *files("honest"))
        if file.kernel and asked.device in file.devices and not (file.at_confirm and asked.device != "emulated")
        if not asked.only or any(part in f"{group_of(file)} {file.name}" for part in asked.only.split(","))
    ]
    refused = evaluated(corpus, asked.device, asked.rounds, asked.workers)
    print("\n".join(table(corpus, refused, asked.rounds)))


def group_of(file: CheatFile) -> str:
    return file.group or HONEST


def evaluated(corpus: list[CheatFile], device: str, rounds: int, workers: int) -> Counter[str]:
    """Return how often each kernel was refused; print every miss and every false alarm."""
    by_id = {file.kernel.id: file for file in corpus if file.kernel}
    refused: Counter[str] = Counter()
    engine = LocalEngine(device, workers, phase_seconds=SECONDS if device == "emulated" else None)
    try:
        for number in range(rounds):
            jobs = (Job(file.kernel, file.kernel.op) for file in corpus if file.kernel)
            for verdict in engine.evaluate(jobs):
                file = by_id[verdict.kernel_id]
                refused[file.name] += not verdict.passed
                if verdict.passed == bool(file.caught):
                    print(f"round {number + 1}: {file.name}: {verdict.outcome}: {verdict.log[:300]}", file=sys.stderr)
    finally:
        engine.close()
    return refused


def table(corpus: list[CheatFile], refused: Counter[str], rounds: int) -> list[str]:
    lines = [
        "| class | kernels | evaluations | refused | kernels refused every time |",
        "| --- | --- | --- | --- | --- |",
    ]
    for group in (*CLASSES, HONEST):
        own = [refused[file.name] for file in corpus if group_of(file) == group]
        if own:
            always = sum(count == rounds for count in own)
            lines.append(f"| {group} | {len(own)} | {len(own) * rounds} | {sum(own)} | {always} |")
    return lines


if __name__ == "__main__":
    main()
