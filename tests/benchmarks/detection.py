"""Detection by class: evaluates wrong and honest kernels of `tests/cheats` again and again and prints a table.

    python tests/benchmarks/detection.py --rounds 10 [--device emulated] [--only special,scale] [--seconds 120]

Each round draws new seeds and shapes. A wrong kernel that passes on a GPU is confirmed, as a champion would be. After
`--seconds` no evaluation begins, and the name of the next kernel is printed, for `--first`. The table counts finished
evaluations, also after an interrupt. Kernels that run into a deadline come last.
"""

import argparse
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from cheat_files import CLASSES, CheatFile, files  # noqa: E402

from archive.records import Evaluation  # noqa: E402
from evolve import wiring  # noqa: E402
from evolve.devices import choose  # noqa: E402
from evolve.engines.engine import Job  # noqa: E402
from evolve.engines.local import LocalEngine  # noqa: E402

HONEST = "honest"
SECONDS = {"compile": 120.0, "run": 20.0, "check": 120.0, "baseline": 120.0, "time": 120.0}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--device", default="emulated")
    options.add_argument("--gpus", default="", help="GPUs to use, such as `all`")
    options.add_argument("--workers", type=int, default=1, help="workers on each GPU")
    options.add_argument("--only", default="", help="parts of names of classes or kernels, separated by commas")
    options.add_argument("--seconds", type=float, default=math.inf)
    options.add_argument("--first", default="", help="name of the kernel to begin with")
    asked = options.parse_args()
    corpus = [
        file
        for file in (*files("kernels"), *files("honest"))
        if file.kernel and asked.device in file.devices
        if not asked.only or any(part in f"{group_of(file)} {file.name}" for part in asked.only.split(","))
    ]
    corpus.sort(key=lambda file: file.lasts)
    if asked.first:
        corpus = corpus[[file.name for file in corpus].index(asked.first) :]
    until = time.monotonic() + asked.seconds
    counts = evaluated(corpus, asked, until)
    print("\n".join(table(corpus, *counts)))


def group_of(file: CheatFile) -> str:
    return file.group or HONEST


def evaluated(corpus: list[CheatFile], asked: argparse.Namespace, until: float) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of evaluations and refusals of each kernel; print every miss and every false alarm."""
    by_id = {file.kernel.id: file for file in corpus if file.kernel}
    done, refused = Counter[str](), Counter[str]()
    emulated, cards = asked.device == "emulated", choose.cards(asked.device, asked.gpus)
    compilers = (
        0 if emulated else wiring.compilers_beside(choose.policy_of(asked.device), len(cards), os.cpu_count() or 1)
    )
    limits = SECONDS if emulated else None
    engine = LocalEngine(asked.device, asked.workers, phase_seconds=limits, compilers=compilers, cards=cards)
    try:
        for number in range(asked.rounds):
            passed = list[Job]()
            for verdict in engine.evaluate(jobs_until(until, corpus)):
                file = by_id[verdict.kernel_id]
                if verdict.passed and file.caught and file.kernel and not emulated:
                    passed.append(Job(file.kernel, file.kernel.op, confirm=True))
                    continue
                done[file.name] += 1
                refused[file.name] += not verdict.passed
                if verdict.passed == bool(file.caught):
                    print(f"round {number + 1}: {file.name}: {verdict.outcome}: {verdict.log[:300]}", file=sys.stderr)
            for verdict in engine.evaluate(passed):
                name = by_id[verdict.kernel_id].name
                done[name] += 1
                refused[name] += not verdict.passed
                said = verdict.log[:200] or "; ".join(without_result(verdict))
                print(f"round {number + 1}: {name}, confirmed: {verdict.outcome}: {said}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        engine.close()
    return done, refused


def jobs_until(until: float, corpus: list[CheatFile]) -> Iterator[Job]:
    for file in corpus:
        if time.monotonic() >= until:
            print(f"next kernel: {file.name}", file=sys.stderr)
            return
        if file.kernel:
            yield Job(file.kernel, file.kernel.op)


def without_result(verdict: Evaluation) -> Iterator[str]:
    """Yield what the sanitizer's tools said that did not finish: a race may then have passed."""
    for report in verdict.confirmed.sanitized if verdict.confirmed else ():
        if report.errors is None:
            yield f"{report.tool}: {report.report[:100]}"


def table(corpus: list[CheatFile], done: Counter[str], refused: Counter[str]) -> list[str]:
    lines = [
        "| class | kernels | evaluations | refused | kernels refused every time |",
        "| --- | --- | --- | --- | --- |",
    ]
    for group in (*CLASSES, HONEST):
        own = [(done[file.name], refused[file.name]) for file in corpus if group_of(file) == group and done[file.name]]
        if own:
            always = sum(count == caught for count, caught in own)
            counts = sum(count for count, _ in own), sum(caught for _, caught in own)
            lines.append(f"| {group} | {len(own)} | {counts[0]} | {counts[1]} | {always} |")
    return lines


if __name__ == "__main__":
    main()
