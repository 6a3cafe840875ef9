from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from gpu_records import H200, duel, times

from archive import kernel as genome
from archive.kernel import Kernel
from archive.records import Duel, Envelope
from evolve.export.template import manifest
from evolve.export.template.calls import NoKernelError
from evolve.export.template.choosing import Choice, Question, choices
from evolve.export.template.manifest import ExportedEntry, Measured, Shipped
from evolve.export.template.options import Options, current, options, set_options
from evolve.op_on_device import point
from reference_ops import catalog
from reference_ops.op import Workload

OP = catalog.load("softmax")
GENOME = """\
/*---
op = "softmax"
{plan}
[[launch]]
entry = "e"
grid = ["rows"]
block = [{threads}]
args = ["x", "out"]
---*/
extern "C" __global__ void e(const x_t* x, out_t* out) {{}}
"""


def kernel(plan: str = "", threads: int = 32) -> Kernel:
    return genome.parse(GENOME.format(plan=plan, threads=threads))


def measured(cols: int, median_us: float, deterministic: bool = True) -> Measured:
    """Return a measurement at 1024 rows of bfloat16, where PyTorch takes 100 us."""
    dims = {"rows": 1024, "cols": cols}
    taken = times(f"cols={cols}", median_us)
    return Measured("NVIDIA H200", "sm_90a", "bfloat16", dims, {}, taken, 0, deterministic, duel(taken))


def entry(kernels: dict[Kernel, list[Measured]], pytorch_wins: Iterable[Measured] = ()) -> ExportedEntry:
    shipped = tuple(Shipped(k.id, "", "", "", "", (), tuple(rows)) for k, rows in kernels.items())
    return ExportedEntry("", (), (), {}, shipped, tuple(pytorch_wins))


def question(cols: int, dtype: str = "bfloat16", device: str = "NVIDIA H200", deterministic: bool = False) -> Question:
    workload = Workload(dtype, (("rows", 1024), ("cols", cols)))
    chosen = Options(deterministic=deterministic)
    return Question("softmax", device, workload, point(OP, workload, H200), chosen, OP.elements(workload), FREE)


FREE: dict[str, frozenset[str]] = defaultdict(frozenset)


def choose(kernels: dict[Kernel, list[Measured]], asked: Question, pytorch_wins: Iterable[Measured] = ()) -> Choice:
    return next(choices(entry(kernels, pytorch_wins), {k.id: k for k in kernels}, asked))


def entry_tested_to(
    cols: int, elements: int, device: str = "NVIDIA H200", of_tensors: tuple[tuple[str, int], ...] = ()
) -> ExportedEntry:
    """Return an entry whose only kernel was tested up to these numbers of columns and elements."""
    tested = manifest.Tested(
        device, 1, None, None, (), (), Envelope((("rows", 2048), ("cols", cols)), elements, of_tensors)
    )
    shipped = Shipped(SHORT.id, "", "", "", "", (), (measured(256, 20.0),), (tested,))
    return ExportedEntry("", (), (), {}, (shipped,), ())


SHORT, LONG = kernel('note = "short"'), kernel('note = "long"')


def test_the_kernel_measured_at_the_same_workload_is_chosen() -> None:
    kernels = {SHORT: [measured(256, 20.0)], LONG: [measured(4096, 20.0)]}
    assert choose(kernels, question(4096)).shipped.id == LONG.id


def test_the_nearest_measurement_is_the_one_with_the_smallest_ratio_of_sizes() -> None:
    # 1200 is 4.7 times 256, but 4096 is only 3.4 times 1200. Measured by the difference, 256 would be nearer.
    kernels = {SHORT: [measured(256, 20.0)], LONG: [measured(4096, 20.0)]}
    assert choose(kernels, question(1200)).shipped.id == LONG.id


def test_the_faster_of_two_kernels_measured_at_one_workload_is_chosen() -> None:
    kernels = {SHORT: [measured(256, 30.0)], LONG: [measured(256, 20.0)]}
    assert choose(kernels, question(256)).shipped.id == LONG.id


def test_a_kernel_that_does_not_accept_the_workload_is_replaced_by_the_next() -> None:
    picky = kernel('when = "cols % 8 == 0"')
    kernels = {picky: [measured(256, 20.0)], LONG: [measured(4096, 20.0)]}
    assert choose(kernels, question(257)).shipped.id == LONG.id


def test_a_kernel_that_exceeds_a_limit_is_replaced_by_the_next() -> None:
    legal_when_short = kernel('require = ["cols <= 256"]')
    kernels = {legal_when_short: [measured(256, 20.0)], LONG: [measured(8192, 20.0)]}
    assert choose(kernels, question(512)).shipped.id == LONG.id


def test_a_kernel_whose_plan_cannot_be_evaluated_is_replaced_by_the_next() -> None:
    divides = kernel('require = ["8 // (cols - 512) < 8"]')
    kernels = {divides: [measured(256, 20.0)], LONG: [measured(8192, 20.0)]}
    assert choose(kernels, question(512)).shipped.id == LONG.id


def test_pytorch_runs_if_it_was_the_fastest_at_the_nearest_workload() -> None:
    with pytest.raises(NoKernelError, match="PyTorch was the fastest at cols=4096"):
        choose({SHORT: [measured(256, 20.0)]}, question(4000), pytorch_wins=[measured(4096, 120.0)])


def test_a_kernel_that_loses_at_the_nearest_workload_does_not_run() -> None:
    picky = kernel('when = "cols % 8 == 0"')
    kernels = {picky: [measured(256, 20.0)], LONG: [measured(256, 110.0), measured(4096, 20.0)]}
    with pytest.raises(NoKernelError, match="PyTorch was the fastest"):
        choose(kernels, question(257))


def test_a_measurement_on_another_gpu_does_not_count() -> None:
    with pytest.raises(NoKernelError, match="measured on NVIDIA B200, only on NVIDIA H200"):
        choose({SHORT: [measured(256, 20.0)]}, question(256, device="NVIDIA B200"))


def test_a_measurement_at_another_dtype_does_not_count() -> None:
    with pytest.raises(NoKernelError, match="measured at float16, only at bfloat16"):
        choose({SHORT: [measured(256, 20.0)]}, question(256, dtype="float16"))


def test_only_deterministic_kernels_run_if_determinism_is_requested() -> None:
    kernels = {SHORT: [measured(256, 20.0, deterministic=False)], LONG: [measured(256, 30.0)]}
    assert choose(kernels, question(256, deterministic=True)).shipped.id == LONG.id


def test_if_no_kernel_accepts_the_workload_the_reason_names_each() -> None:
    picky = kernel('when = "cols % 8 == 0"')
    with pytest.raises(NoKernelError, match=f"{picky.id} does not accept rows=1024 cols=257 bfloat16"):
        choose({picky: [measured(256, 20.0)]}, question(257))


def test_the_other_choices_follow_the_best_one() -> None:
    kernels = {SHORT: [measured(256, 20.0)], LONG: [measured(4096, 20.0)]}
    found = islice(choices(entry(kernels), {k.id: k for k in kernels}, question(256)), 2)
    assert [choice.shipped.id for choice in found] == [SHORT.id, LONG.id]


def test_a_kernel_runs_up_to_the_largest_size_with_which_it_was_tested() -> None:
    chosen = next(choices(entry_tested_to(512, 2**24), {SHORT.id: SHORT}, question(512)))
    assert chosen.shipped.id == SHORT.id


def test_a_kernel_is_refused_at_a_size_beyond_those_with_which_it_was_tested() -> None:
    with pytest.raises(NoKernelError, match="cols=513 is more than the 512 up to which it was tested"):
        next(choices(entry_tested_to(512, 2**24), {SHORT.id: SHORT}, question(513)))


def test_a_kernel_is_refused_for_a_tensor_of_more_elements_than_it_was_tested_with() -> None:
    with pytest.raises(NoKernelError, match="a tensor of 262144 elements is larger"):
        next(choices(entry_tested_to(512, 2**17), {SHORT.id: SHORT}, question(256)))


@pytest.mark.parametrize(("most", "is_refused"), [(2**18, False), (2**18 - 1, True)])
def test_a_kernel_is_refused_if_one_tensor_has_more_elements_than_that_tensor_was_tested_with(
    most: int, is_refused: bool
) -> None:
    """The number of elements of another tensor, such as a table beside the output of a lookup, does not count."""
    entry = entry_tested_to(512, 2**32, of_tensors=(("x", 2**32), ("out", most)))
    found = choices(entry, {SHORT.id: SHORT}, question(256))
    if is_refused:
        with pytest.raises(NoKernelError, match=f"`out` has 262144 elements, more than the {most} up to which"):
            next(found)
    else:
        assert next(found).shipped.id == SHORT.id


def test_tests_on_another_gpu_do_not_limit_a_kernel() -> None:
    chosen = next(choices(entry_tested_to(16, 16, device="NVIDIA H100"), {SHORT.id: SHORT}, question(256)))
    assert chosen.shipped.id == SHORT.id


def asked_with(cols: int = 256, **chosen: Any) -> Question:
    return replace(question(cols), options=replace(Options(), **chosen))


@pytest.mark.parametrize(("median_us", "wins"), [(30.0, True), (89.0, True), (95.0, False)])
def test_a_kernel_that_had_no_duel_runs_in_eager_code_where_it_is_clearly_faster(median_us: float, wins: bool) -> None:
    """A confirmation holds no duel where the compiler's code is faster."""
    found = replace(measured(1024, median_us), duel=None)
    assert (found.beats_pytorch(compiled=False), found.beats_pytorch(compiled=True)) == (wins, False)


def test_a_kernel_as_fast_as_the_compiler_runs_only_in_eager_code() -> None:
    even = replace(measured(256, 60.0), duel=Duel("w", "compile", 1.0, 0.99, 1.01, 0.01))
    assert choose({SHORT: [even]}, question(256)).shipped.id == SHORT.id
    with pytest.raises(NoKernelError, match=r"torch.compile was the fastest"):
        choose({SHORT: [even]}, replace(question(256), compiled=True))


def test_a_pinned_kernel_runs_although_another_is_faster_or_pytorch_is() -> None:
    kernels = {SHORT: [measured(256, 20.0)], LONG: [measured(256, 90.0)]}
    asked = asked_with(pin=(("softmax", LONG.id),))
    assert choose(kernels, asked).shipped.id == LONG.id
    assert choose({LONG: [measured(4096, 20.0)]}, asked, pytorch_wins=[measured(256, 120.0)]).shipped.id == LONG.id


def test_a_pinned_kernel_that_the_package_lacks_is_named() -> None:
    with pytest.raises(NoKernelError, match="pin softmax to abc, which the package does not have"):
        choose({SHORT: [measured(256, 20.0)]}, asked_with(pin=(("softmax", "abc"),)))


@pytest.mark.parametrize("chosen", [{"autotune": True}, {"pin": (("softmax", SHORT.id),)}])
def test_a_kernel_measured_on_another_gpu_can_be_tried_on_request(chosen: dict[str, Any]) -> None:
    asked = replace(asked_with(**chosen), device="NVIDIA H100", arch="sm_90a")
    assert choose({SHORT: [measured(256, 20.0)]}, asked).shipped.id == SHORT.id


def test_autotuning_tries_no_kernel_of_another_architecture() -> None:
    asked = replace(asked_with(autotune=True), device="NVIDIA B200", arch="sm_100a")
    with pytest.raises(NoKernelError, match=r"measured on NVIDIA B200, only on NVIDIA H200$"):
        choose({SHORT: [measured(256, 20.0)]}, asked)


def test_the_reason_on_another_gpu_of_the_same_architecture_says_what_to_do() -> None:
    asked = replace(question(256), device="NVIDIA H100", arch="sm_90a")
    with pytest.raises(
        NoKernelError, match=r"only on NVIDIA H200; options\(autotune=True\) measures such kernels here"
    ):
        choose({SHORT: [measured(256, 20.0)]}, asked)


def test_an_op_pinned_to_pytorch_has_no_kernel() -> None:
    with pytest.raises(NoKernelError, match="the options pin softmax to PyTorch"):
        choose({SHORT: [measured(256, 20.0)]}, asked_with(pin=(("softmax", "pytorch"),)))


def test_an_op_that_is_not_allowed_has_no_kernel() -> None:
    with pytest.raises(NoKernelError, match="the options allow no kernels of softmax"):
        choose({SHORT: [measured(256, 20.0)]}, asked_with(allow=frozenset({"gelu"})))


def test_a_kernel_that_needs_more_workspace_than_allowed_is_skipped() -> None:
    with_workspace = kernel('[workspace]\nsums = { shape = ["rows"], dtype = "float32" }')
    kernels = {with_workspace: [measured(256, 20.0)], LONG: [measured(256, 30.0)]}
    assert choose(kernels, asked_with(workspace_limit=4096)).shipped.id == with_workspace.id
    assert choose(kernels, asked_with(workspace_limit=4095)).shipped.id == LONG.id


def test_options_hold_for_a_block_and_add_to_those_around_it() -> None:
    with options(deterministic=True), options(pin={"softmax": "pytorch"}):
        assert current() == Options(deterministic=True, pin=(("softmax", "pytorch"),))
    assert current() == Options()


def test_defaults_hold_for_the_process_until_they_are_reset() -> None:
    set_options(workspace_limit=0)
    try:
        assert current().workspace_limit == 0
    finally:
        set_options()
    assert current() == Options()


@pytest.mark.parametrize("limit", ["1 GB", -1, 1.5, True])
def test_a_limit_of_workspace_that_is_no_number_of_bytes_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="workspace_limit must be a number of bytes, got"):
        set_options(workspace_limit=limit)
