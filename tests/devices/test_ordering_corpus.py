"""Order among blocks in whole kernels: shipped and honest ones compile for declared workloads, others are refused."""

import re

import pytest

pytest.importorskip("cupy")

from collections.abc import Iterator
from contextlib import suppress

from cheat_files import CheatFile, files
from each import each
from shared_objects import assemble_plainly

from archive.binding import IllegalError
from archive.kernel import Kernel
from archive.library import op_names, shipped
from archive.records import DeviceInfo, Evaluation, Outcome
from evolve.devices.cuda import compiler
from evolve.devices.cuda.compiler import check_compiles, compile_cubin
from evolve.evaluation.compiling import bound_at, verdict_on
from reference_ops import catalog
from reference_ops.op import DTYPES

DEVICES = {
    "cuda": DeviceInfo(kind="cuda", name="a GPU", arch="sm_90a", sms=132, shared_bytes=232448),
    "emulated": DeviceInfo(kind="emulated", name="a CPU", arch="sm_90a", sms=4, shared_bytes=232448),
}
SHARES = re.compile(r"atomic[A-Z]|volatile|__threadfence|__ldc?g|\basm\b|cooperative = true")
CACHED = (compiler._nvrtc, compiler._found_or_compiled)  # as they are before tests share what they compile
QUICK = ("histogram/", "honest/a")  # beginnings of names of kernels that compile quickly
UNORDERED = {file.name: file for file in files("kernels") if file.caught == (Outcome.UNSAFE,) and not file.at_confirm}
# tests/cheats compiles the others, whose blocks have no order
HONEST = {
    f"honest/{one.name}": one.kernel for one in files("honest") if one.kernel and SHARES.search(one.kernel.source)
}
RIGHT = {**{f"{op}/{kernel.id[:8]}": kernel for op in op_names() for kernel in shipped(op)}, **HONEST}


@pytest.fixture(scope="module", autouse=True)
def plain_assembler() -> Iterator[None]:
    """Orders are found in the PTX; only what the assembler refuses matters here."""
    with pytest.MonkeyPatch.context() as patch:
        assemble_plainly(patch.setattr)
        yield
    for cached in CACHED:
        cached.cache_clear()


def compiled(kernel: Kernel, device: str) -> Evaluation:
    """Compile for a declared and an awkward workload of each size of elements. Evaluations compile for more shapes.

    Code whose blocks share nothing has no order that sizes or dtypes could change: one workload is enough. Machine
    code shows no order, so it is made for one workload only, unless the assembler may refuse that of another.
    """
    op, info = catalog.load(kernel.op), DEVICES[device]
    awkward = {DTYPES[workload.dtype].itemsize: workload for workload in reversed(op.awkward)}
    shares = SHARES.search(kernel.source)

    def judge(verdict: Evaluation) -> Evaluation:
        sizes = set[int]()
        for workload in (*op.workloads(info.kind), *awkward.values()):
            size = DTYPES[workload.dtype].itemsize
            if size in sizes and not (shares and workload in awkward.values()):
                continue
            with suppress(IllegalError):
                bound = bound_at(kernel, op, workload, info)
                (check_compiles if sizes else compile_cubin)(bound, info.arch)
                sizes.add(size)
                if not shares:
                    break
        return verdict

    return verdict_on(kernel, op, info, judge)


@each(RIGHT, quick=[name for name, kernel in RIGHT.items() if SHARES.search(kernel.source) and name.startswith(QUICK)])
def test_a_kernel_that_orders_its_blocks_compiles(kernel: Kernel) -> None:
    verdict = compiled(kernel, "cuda")
    assert verdict.outcome is Outcome.PASSED, verdict.log


@each(UNORDERED, quick=sorted(UNORDERED)[::4])
def test_a_kernel_that_does_not_order_its_blocks_is_refused_before_it_runs(file: CheatFile) -> None:
    assert file.kernel
    for device in DEVICES:
        assert compiled(file.kernel, device).outcome is Outcome.UNSAFE
