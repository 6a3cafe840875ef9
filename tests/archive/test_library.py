"""Shipped kernels: each fits its op, and together they accept every workload."""

import itertools
import random

from chosen_ops import THOROUGH
from each import each

from archive import binding, kernel, library
from archive.binding import IllegalError
from archive.kernel import Kernel
from archive.records import DeviceInfo
from evolve.op_on_device import point, signature
from reference_ops import catalog
from reference_ops.listing import PACKAGE
from reference_ops.op import Op

OPS = {name: catalog.load(name) for name in catalog.names()}
PLAIN = "simple.cu"  # a starting point for ops that have no faster kernel yet
PLAIN_TEXTS = {path.read_text() for path in (PACKAGE.parent / "archive" / "kernels").glob(f"*/{PLAIN}")}
SHIPPED = {f"{name} {shipped.id}": (op, shipped) for name, op in OPS.items() for shipped in library.shipped(name)}
DEVICES = [
    DeviceInfo("cuda", "NVIDIA H200", "sm_90a", 132, 232_448),
    DeviceInfo("emulated", "a processor", "sm_90a", 4, 232_448),
]
MOST_SETTINGS = 60  # enough to see whether most are legal
MADE_FOR_SPEED = {name: case for name, case in SHIPPED.items() if case[1].text not in PLAIN_TEXTS}


def settings(shipped: Kernel) -> list[dict[str, int]]:
    names = [name for name, _ in shipped.plan.knobs]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(v for _, v in shipped.plan.knobs))]


def test_an_unknown_op_has_no_shipped_kernels() -> None:
    assert library.shipped("no_such_op") == []


@each(OPS)
def test_no_two_shipped_kernels_are_the_same(op: Op) -> None:
    shipped = library.shipped(op.name)
    assert len({kernel.id for kernel in shipped}) == len(shipped) >= 1


@each(SHIPPED)
def test_a_shipped_kernel_fits_its_op(op: Op, shipped: Kernel) -> None:
    binding.check(shipped, signature(op))


@each(SHIPPED)
def test_a_shipped_kernel_is_unchanged_by_printing_and_parsing(op: Op, shipped: Kernel) -> None:
    assert kernel.parse(shipped.text) == shipped


@each(SHIPPED)
def test_a_shipped_file_is_in_canonical_form(op: Op, shipped: Kernel) -> None:
    folder = PACKAGE.parent / "archive" / "kernels" / op.name
    assert shipped.text in [path.read_text() for path in folder.glob("*.cu")]


@each({f"{name} {device.kind}": (*case, device) for name, case in SHIPPED.items() for device in DEVICES})
def test_a_shipped_kernel_binds_at_every_workload_that_it_accepts(op: Op, shipped: Kernel, device: DeviceInfo) -> None:
    for workload in (*op.workloads(device.kind), *op.awkward):
        at = point(op, workload, device)
        if binding.accepts(shipped, at):
            assert binding.bind(shipped, at).launches, workload.key


@each(MADE_FOR_SPEED)
def test_a_kernel_made_for_speed_has_knobs(op: Op, shipped: Kernel) -> None:
    assert 3 <= len(settings(shipped)) <= 300


@each(MADE_FOR_SPEED, quick=[name for name in MADE_FOR_SPEED if name.split()[0] in THOROUGH])
def test_most_knob_settings_are_legal_on_a_gpu(op: Op, shipped: Kernel) -> None:
    accepted = [at for w in op.gpu if binding.accepts(shipped, at := point(op, w, DEVICES[0]))]
    every = settings(shipped)
    some = random.Random(0).sample(every, min(MOST_SETTINGS, len(every)))
    legal = sum(_binds(shipped.with_knobs(setting), at) for setting in some for at in accepted)
    assert legal >= len(accepted) * len(some) / 2


@each({f"{name} {device.kind}": (op, device) for name, op in OPS.items() for device in DEVICES})
def test_every_workload_is_accepted_by_a_shipped_kernel(op: Op, device: DeviceInfo) -> None:
    for workload in (*op.workloads(device.kind), *op.awkward):
        at = point(op, workload, device)
        assert any(binding.accepts(shipped, at) for shipped in library.shipped(op.name)), workload.key


def _binds(candidate: Kernel, at: binding.Point) -> bool:
    try:
        binding.bind(candidate, at)
    except IllegalError:
        return False
    return True
