"""Benchmark of timing losers coarsely: its effect on the ranking, and on speed. Run this file with Python.

Without `--op`, the times of every knob setting that an H200 has measured (tests/data/landscapes) are drawn again with
noise, in random order, as in a run: with the champion's time to beat, and in full. With `--op`, knob settings of the
op's shipped kernels are evaluated on this machine's device, both ways. The op may be a KernelBench task, given by its
file together with `--kernel FILE.cu`. The last line says how much more its first kernel costs than the others.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from archive.kernel import Kernel, parse  # noqa: E402
from archive.library import shipped  # noqa: E402
from archive.records import Evaluation, Measurement  # noqa: E402
from evolve import wiring  # noqa: E402
from evolve.devices import choose  # noqa: E402
from evolve.engines.engine import Engine, Job  # noqa: E402
from evolve.evaluation.timing import PROMISING, _continue  # noqa: E402
from reference_ops import catalog  # noqa: E402

ROUNDS = 5
NOISE, DISTURBED = 0.015, 0.03  # relative deviation of a sample; share of samples that take up to twice as long


@dataclass(frozen=True)
class Ranked:
    """Times of kernels at one workload, by the number of the kernel, and the number of their samples."""

    times_us: dict[int, float]
    samples: int


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--op", default="", help="name of an op, or path of a file")
    options.add_argument(
        "--kernel", type=Path, action="append", help="file of a kernel for it [default: the shipped ones]"
    )
    options.add_argument("--kernels", type=int, default=100)
    options.add_argument("--device", default="")
    given = options.parse_args()
    if given.op:
        texts = [file.read_text() for file in given.kernel or []]
        _on_this_machine(given.op, [parse(text) for text in texts] or shipped(given.op), given.kernels, given.device)
    else:
        _from_recorded_times()


def _from_recorded_times() -> None:
    print("samples; champions within 1 % of the best; pairs of contenders in the right order; in brackets: in full")
    print(f"{'landscape':44} {'settings':>8} {'samples':>16} {'champion':>13} {'order':>11}")
    for file in sorted((ROOT / "tests" / "data" / "landscapes").glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for place, workload in enumerate(rows[0]["workloads"]):
            times = [row["us"][place] for row in rows[1:] if row["us"][place]]
            if len(times) >= 10:
                _print_simulated(f"{file.stem[:12]} {workload}", times)


def _print_simulated(name: str, times: Sequence[float]) -> None:
    best = min(times)
    contenders = [n for n, us in enumerate(times) if us <= PROMISING * best]
    cells = []
    for with_bar in (True, False):
        runs = [_met(times, seed, with_bar=with_bar) for seed in range(ROUNDS)]
        champions = [times[min(run.times_us, key=run.times_us.__getitem__)] <= 1.01 * best for run in runs]
        pairs = [
            (run.times_us[one] <= run.times_us[other]) == (times[one] <= times[other])
            for run in runs
            for one, other in itertools.combinations(contenders, 2)
        ]
        ordered = statistics.mean(pairs) if pairs else 1.0
        cells.append((sum(run.samples for run in runs) // ROUNDS, statistics.mean(champions), ordered))
    (samples, champion, order), (all_samples, all_champion, all_order) = cells
    print(f"{name[:44]:44} {len(times):8} {f'{samples} ({all_samples})':>16} "
          f"{f'{champion:.0%} ({all_champion:.0%})':>13} {f'{order:.0%} ({all_order:.0%})':>11}")  # fmt: skip


def _met(times: Sequence[float], seed: int, *, with_bar: bool) -> Ranked:
    """Time the settings in random order, as a run does: the time to beat is the best so far."""
    rng, found, taken = random.Random(seed), dict[int, float](), 0
    for n in rng.sample(range(len(times)), len(times)):
        bar_us = min(found.values(), default=None) if with_bar else None
        samples: list[float] = []
        own = random.Random(f"{seed} {n}")  # the same samples with and without a time to beat
        while _continue(samples, 0.0, bar_us, math.inf):
            disturbed = own.uniform(1.05, 2.0) if own.random() < DISTURBED else 1.0
            samples.append(times[n] * math.exp(own.gauss(0.0, NOISE)) * disturbed)
        found[n] = statistics.median(samples)
        taken += len(samples)
    return Ranked(found, taken)


def _on_this_machine(op: str, kernels: Sequence[Kernel], most: int, device: str) -> None:
    locator = catalog.lasting(op)
    engine = wiring.engine(choose.device_kind(device))
    try:
        settings = list(itertools.islice(_settings(kernels), most))
        first_s, _ = _evaluated(engine, locator, settings[:1], {})
        again_s, _ = _evaluated(engine, locator, settings[:1], {})
        full_s, full = _evaluated(engine, locator, settings, {})
        passed = {evaluation.kernel_id for evaluation in full if evaluation.passed}
        right = [kernel for kernel in settings if kernel.id in passed]
        bars = {workload: min(times) for workload, times in _times(full).items()}
        cheap_s, cheap = _evaluated(engine, locator, right, bars)
        lost = {evaluation.kernel_id for evaluation in cheap if all(one.coarse for one in evaluation.measurements)}
        losers = [kernel for kernel in right if kernel.id in lost]
        losers_s, _ = _evaluated(engine, locator, losers, bars)
    finally:
        engine.close()
    outcomes = dict(Counter(str(evaluation.outcome) for evaluation in full))
    print(f"{op} on {full[0].device.name}: {len(settings)} kernels, {outcomes}")
    print(f"right kernels a second: in full {len(right) / full_s:.1f}, with bars {len(right) / cheap_s:.1f}")
    print(f"kernels a second that are no contender anywhere: {len(losers) / losers_s:.1f} ({len(losers)} kernels)")
    for workload in bars:
        _print_ranking(workload, *(_measured(found, workload) for found in (full, cheap)))
    print(f"the first kernel took {first_s:.1f} s, the same again {again_s:.2f} s")


def _print_ranking(workload: str, full: dict[str, Measurement], cheap: dict[str, Measurement]) -> None:
    best = min(one.median_us for one in full.values())
    contenders = [kernel for kernel in full if kernel in cheap and full[kernel].median_us <= PROMISING * best]
    pairs = list(itertools.combinations(contenders, 2))
    equal = sum(
        (full[one].median_us <= full[other].median_us) == (cheap[one].median_us <= cheap[other].median_us)
        for one, other in pairs
    )
    champion = full[min(cheap, key=lambda kernel: cheap[kernel].median_us)].median_us / best - 1
    coarse = sum(one.coarse for one in cheap.values())
    print(f"  {workload:40} {coarse:4} coarse, {len(contenders):3} contenders, {equal} of {len(pairs)} pairs "
          f"in the same order, champion within {champion:.1%}")  # fmt: skip


def _evaluated(
    engine: Engine, op: str, kernels: Sequence[Kernel], bars: dict[str, float]
) -> tuple[float, list[Evaluation]]:
    started = time.monotonic()
    found = list(engine.evaluate(Job(kernel, op, tuple(bars.items()), setting=bool(bars)) for kernel in kernels))
    return time.monotonic() - started, found


def _measured(found: Sequence[Evaluation], workload: str) -> dict[str, Measurement]:
    return {e.kernel_id: m for e in found for m in e.measurements if m.workload == workload}


def _times(found: Sequence[Evaluation]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for measurement in (m for evaluation in found for m in evaluation.measurements):
        times.setdefault(measurement.workload, []).append(measurement.median_us)
    return times


def _settings(kernels: Sequence[Kernel]) -> Iterator[Kernel]:
    """Yield knob settings of these kernels in round-robin order."""
    for together in itertools.zip_longest(*map(_settings_of, kernels)):
        yield from filter(None, together)


def _settings_of(kernel: Kernel) -> list[Kernel]:
    names = [knob for knob, _ in kernel.plan.knobs]
    choices = list(itertools.product(*(values for _, values in kernel.plan.knobs)))
    return [
        kernel.with_knobs(dict(zip(names, one, strict=True))) for one in random.Random(1).sample(choices, len(choices))
    ]


if __name__ == "__main__":
    main()
