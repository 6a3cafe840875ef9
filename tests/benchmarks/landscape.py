"""Benchmark of every legal setting of one kernel on this machine's GPU, which stores the times in a file.

Run this file with Python.

    landscape.py softmax archive/kernels/softmax/long_rows.cu --out tests/data/landscapes/softmax_long_rows.jsonl

Settings that are already in the file are skipped, so a run that was stopped, or that --seconds ended, can be continued.
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from landscapes import header, line, read  # noqa: E402

from archive.binding import IllegalError, accepts, bind, parse_for  # noqa: E402
from archive.kernel import Kernel  # noqa: E402
from archive.records import DeviceInfo, Evaluation  # noqa: E402
from evolve import wiring  # noqa: E402
from evolve.devices import choose  # noqa: E402
from evolve.engines.engine import Engine, Job  # noqa: E402
from evolve.op_on_device import point, signature  # noqa: E402
from reference_ops import catalog  # noqa: E402
from reference_ops.op import Op  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("op", help="name of an op in the catalog, or path of a file that defines one")
    options.add_argument("kernel", type=Path)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument(
        "--seconds", type=float, default=float("inf"), help="start no evaluation after this many seconds"
    )
    options.add_argument("--device", default="", help="cuda or emulated")
    requested = options.parse_args()
    started = time.monotonic()
    op = catalog.load(requested.op)
    kernel = parse_for(requested.kernel.read_text(encoding="utf-8"), signature(op))
    engine = wiring.engine(choose.device_kind(requested.device))
    try:
        _dump(op, requested.op, kernel, engine, requested.out, started + requested.seconds)
    finally:
        engine.close()


def _dump(op: Op, locator: str, kernel: Kernel, engine: Engine, out: Path, deadline: float) -> None:
    workloads = [workload.key for workload in op.workloads(engine.info.kind)]
    if not out.exists():
        out.write_text(header(locator, kernel, engine.info, workloads), encoding="utf-8")
    held = read(out)
    if (held.kernel.id, held.device.key) != (kernel.id, engine.info.key):
        sys.exit(f"{out} holds times of another kernel or device ({held.device.key}); choose another --out")
    legal = list(_legal(kernel, op, engine.info))
    left = [one for one in legal if tuple(one.plan.settings.values()) not in held.results]
    print(f"{len(legal)} legal settings, {len(left)} of them to do", flush=True)
    job_op = str(Path(locator).resolve()) if Path(locator).is_file() else locator
    done = 0
    with out.open("a", encoding="utf-8") as file:
        if not out.read_text(encoding="utf-8").endswith("\n"):
            file.write("\n")  # completes the last line if it was cut off
        for evaluation in engine.evaluate(Job(one, job_op) for one in left if time.monotonic() < deadline):
            file.write(_line(left, evaluation, workloads))
            file.flush()
            done += 1
    print(f"{done} done, {len(left) - done} left")


def _legal(kernel: Kernel, op: Op, device: DeviceInfo) -> Iterator[Kernel]:
    """Yield the legal settings in random order, so that the first of them are a fair sample."""
    names = [name for name, _ in kernel.plan.knobs]
    settings = list(itertools.product(*(sorted(values) for _, values in kernel.plan.knobs)))
    random.Random(0).shuffle(settings)
    for setting in settings:
        one = kernel.with_knobs(dict(zip(names, setting, strict=True)))
        if any(_binds(one, op, device, index) for index in range(len(op.workloads(device.kind)))):
            yield one


def _binds(kernel: Kernel, op: Op, device: DeviceInfo, index: int) -> bool:
    place = point(op, op.workloads(device.kind)[index], device)
    try:
        return accepts(kernel, place) and bool(bind(kernel, place))
    except IllegalError:
        return False


def _line(kernels: list[Kernel], evaluation: Evaluation, workloads: list[str]) -> str:
    one = next(kernel for kernel in kernels if kernel.id == evaluation.kernel_id)
    return line(tuple(one.plan.settings.values()), evaluation, workloads)


if __name__ == "__main__":
    main()
