"""Archives with made-up evaluations on GPUs for tests of the export."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from archive import library
from archive.kernel import Kernel
from archive.records import Check, Confirmed, DeviceInfo, Duel, Evaluation, Measurement, Outcome, Sanitized
from archive.sqlite import SqliteStore, open_archive
from evolve.export.package import ExportReport, export
from reference_ops import catalog
from reference_ops.op import Op

H200 = DeviceInfo("cuda", "NVIDIA H200", "sm_90a", 132, 232_448)
A100 = DeviceInfo("cuda", "NVIDIA A100", "sm_80", 108, 166_912)
EMULATOR = DeviceInfo("emulated", "emulated", "host", 4, 49_152)
PYTORCH_US = 100.0
LONGER = 1e6  # times that are longer by this factor let kernels win at any size, whatever the host takes


def times(workload: str, median_us: float, width: float = 0.02) -> Measurement:
    """Return a time with an interval of +- 2 % at a workload where PyTorch takes 100 us."""
    low, high = median_us * (1 - width), median_us * (1 + width)
    return Measurement(workload, median_us, low, high, 50, PYTORCH_US, PYTORCH_US + 1, 10.0)


def duel(measured: Measurement) -> Duel:
    """Return a duel with the measured speedup and interval, and a noise of 1 %."""
    low, high = (measured.baseline_us / time for time in (measured.high_us, measured.low_us))
    return Duel(measured.workload, "eager", measured.speedup, low, high, noise=0.01)


def confirmed(kernel: Kernel, medians_us: Mapping[str, float], device: DeviceInfo = H200) -> Evaluation:
    evaluation = passed(kernel, medians_us, device)
    return replace(
        evaluation,
        checks=tuple(Check(m.workload, "normal", "out", 1.5e-3, 1e-3, 0.25) for m in evaluation.measurements),
        confirmed=Confirmed(
            ("rows=7 cols=1023 bfloat16",),
            tuple(map(duel, evaluation.measurements)),
            (Sanitized("memcheck", 0), Sanitized("racecheck", None, "it took more than 60 s")),
        ),
    )


def prolonged(evaluation: Evaluation, factor: float) -> Evaluation:
    """Return the evaluation with times of the kernel and of PyTorch that are longer by this factor."""
    names = ("median_us", "low_us", "high_us", "eager_us", "compile_us")
    measured = [{name: getattr(one, name) * factor for name in names} for one in evaluation.measurements]
    pairs = zip(evaluation.measurements, measured, strict=True)
    return replace(evaluation, measurements=tuple(replace(one, **times) for one, times in pairs))


def passed(kernel: Kernel, medians_us: Mapping[str, float], device: DeviceInfo = H200) -> Evaluation:
    measurements = tuple(times(workload, median) for workload, median in medians_us.items())
    return Evaluation(kernel.id, kernel.op, device, Outcome.PASSED, "", measurements, deterministic=True)


def everywhere(op: Op, median_us: float) -> dict[str, float]:
    return {workload.key: median_us for workload in op.gpu}


def archive_of(folder: Path, *records: Kernel | Evaluation) -> SqliteStore:
    store = open_archive(folder / "archive.db")
    store.append(*records)
    return store


def simple(op: str) -> Kernel:
    """Return the op's shipped kernel that accepts all sizes."""
    return next(kernel for kernel in library.shipped(op) if not kernel.plan.when)


def ops(*names: str) -> list[tuple[Op, Path]]:
    return [(catalog.load(name), catalog.locate(name)) for name in names]


def exported(
    folder: Path, *names: str, package: str = "primitives", device: DeviceInfo = H200, longer: float = 1.0
) -> ExportReport:
    """Export a package in which the simple kernel of each op wins on every workload.

    With `longer`, all times are longer by this factor, so that kernels also win at much smaller sizes.
    """
    records: list[Kernel | Evaluation] = []
    for name in names:
        kernel = simple(name)
        records += [kernel, prolonged(confirmed(kernel, everywhere(catalog.load(name), 50.0), device), longer)]
    return export(archive_of(folder, *records), ops(*names), folder / "out", package)


def imported(folder: Path, package: str) -> ModuleType:
    """Import an exported package. Each test needs a unique package name."""
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(package)
    finally:
        sys.path.remove(str(folder))
