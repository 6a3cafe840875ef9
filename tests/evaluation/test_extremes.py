"""The check on extremes: each is tested at a small workload in every dtype, and a kernel that is wrong there fails."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from each import each
from scripted_device import ScriptedDevice, program

from archive.records import Check
from evolve.devices.device import RejectedError, Tools
from evolve.evaluation.buffers import Arena
from evolve.evaluation.check import Inspector
from evolve.evaluation.chosen_inputs import (
    check_declared,
    check_edge,
    check_extremes,
    check_long,
    check_missing,
    check_parameters,
    check_stretched,
    check_tails,
)
from evolve.evaluation.compiling import Compiled
from evolve.evaluation.evaluate import envelope, warm_up
from evolve.evaluation.evaluator import Evaluator
from reference_ops import catalog
from reference_ops.arrangements import of_order
from reference_ops.op import (
    INFINITE,
    LARGE,
    MINUS_INF,
    MINUTE,
    NAN,
    NORMAL,
    OVERFLOWING,
    ZERO,
    Op,
    Workload,
    tensors,
    workloads,
)

Tensors = Mapping[str, torch.Tensor]
Work = Callable[[Tensors], None]
DECLARED = workloads("float32 bfloat16", {"rows": 16, "cols": 64})
SMALL = workloads("float32 bfloat16", {"rows": 9, "cols": 33})
LONG = workloads("float32", {"rows": 4, "cols": 3000})
ROWS = workloads("float32", {"rows": 7, "cols": 1000}, {"rows": 1, "cols": 1000})
EDGES = workloads("float32", {"rows": 2, "cols": 3})
OP = Op(
    name="clipped",
    reference=torch.relu,
    inputs=tensors(x="rows cols"),
    outputs=tensors(out="rows cols"),
    gpu=DECLARED,
    emulated=DECLARED,
    awkward=SMALL,
    flops=lambda dims: dims["rows"] * dims["cols"],
    arranged=of_order("x"),
)


def compiled(work: Work, op: Op = OP) -> Compiled[object]:
    def all_at(places: tuple[Workload, ...]) -> tuple[tuple[Workload, object], ...]:
        return tuple((workload, program(work)) for workload in places)

    return Compiled(all_at(op.emulated), all_at(op.awkward), (), all_at(LONG), all_at(ROWS), all_at(EDGES), (), (), ())


def inspector(checks: list[Check], seed: int = 3) -> Inspector:
    return Inspector(ScriptedDevice(), Arena("cpu"), random.Random(seed), checks, lambda _phase: None)


def run(work: Work, op: Op = OP, seed: int = 3) -> list[Check]:
    checks: list[Check] = []
    looking = inspector(checks, seed)
    check_extremes(compiled(work, op), op, looking)  # type: ignore[arg-type]
    for pair in compiled(work, op).stretched:
        check_stretched(pair, op, looking)  # type: ignore[arg-type]
    check_declared(compiled(work, op), op, looking, confirm=False)  # type: ignore[arg-type]
    check_missing(compiled(work, op), op, looking)  # type: ignore[arg-type]
    return checks


def run_extremes(work: Work, op: Op) -> list[Check]:
    checks: list[Check] = []
    check_extremes(compiled(work, op), op, inspector(checks))  # type: ignore[arg-type]
    return checks


def clipped(tensors: Tensors) -> None:
    tensors["out"].copy_(tensors["x"].relu())


def test_every_extreme_is_tested_in_every_dtype() -> None:
    met = {(check.values, check.workload.split()[-1]) for check in run(clipped)}
    assert {(name, dtype) for name in (*OP.extremes, *OP.arrangements) for dtype in OP.dtypes} <= met


def test_every_extreme_is_tested_on_its_own_if_rows_depend_on_each_other() -> None:
    met = {(check.values, check.workload.split()[-1]) for check in run(clipped, replace(OP, by_rows=False))}
    assert {(name, dtype) for name in (*OP.extremes, *OP.arrangements) for dtype in OP.dtypes} <= met


def test_every_arrangement_is_tested_where_a_dim_is_long() -> None:
    met = {check.values for check in run(clipped) if check.workload == LONG[0].key}
    assert met >= {NORMAL, *OP.arrangements}
    assert len(met) == 2 + len(OP.arrangements)  # with four rows, there is only one check of extremes


def test_arrangements_come_first_at_the_declared_workloads() -> None:
    met = {check.values for check in run(clipped) if check.workload in {place.key for place in DECLARED}}
    assert met <= {*OP.arrangements, *OP.extremes}
    assert set(OP.arrangements) <= met


@pytest.mark.parametrize("by_rows", [True, False])
def test_nan_at_the_end_of_odd_rows_is_tested_in_every_dtype(by_rows: bool) -> None:
    checks: list[Check] = []
    op = replace(OP, by_rows=by_rows)
    check_tails(compiled(clipped, op), op, inspector(checks))  # type: ignore[arg-type]
    expected = {(name, place.key) for name in (NAN, INFINITE) for place in SMALL}  # these have 33 columns
    assert {(check.values, check.workload) for check in checks} == expected


def test_no_tails_are_checked_where_all_rows_are_even() -> None:
    checks: list[Check] = []
    op = replace(OP, awkward=())
    check_tails(compiled(clipped, op), op, inspector(checks))  # type: ignore[arg-type]
    assert not checks


def test_a_champion_is_tested_with_extremes_at_declared_workloads_too() -> None:
    checks: list[Check] = []
    plain = replace(OP, arranged={})
    check_declared(compiled(clipped, plain), plain, inspector(checks), confirm=True)  # type: ignore[arg-type]
    assert [check.workload for check in checks][: len(DECLARED)] == [place.key for place in DECLARED]
    assert {check.values for check in checks} <= set(OP.extremes)


def test_every_extreme_is_tested_at_each_kind_of_declared_rows_however_few_rows_there_are() -> None:
    kinds = workloads("float32", {"rows": 2, "cols": 64}, {"rows": 40, "cols": 63})
    checks: list[Check] = []
    op = replace(OP, gpu=kinds, emulated=kinds)
    check_declared(compiled(clipped, op), op, inspector(checks), confirm=False)  # type: ignore[arg-type]
    for kind in kinds:
        assert {check.values for check in checks if check.workload == kind.key} >= set(OP.extremes)


def once(op: Op) -> dict[str, set[str]]:
    """Return the values that are tested at each edge."""
    checks: list[Check] = []
    for pair in compiled(clipped, op).long:
        check_long(pair, op, inspector(checks))  # type: ignore[arg-type]
    for pair in compiled(clipped, op).once:
        check_parameters(pair, op, inspector(checks))  # type: ignore[arg-type]
    return {place.key: {one.values for one in checks if one.workload == place.key} for place in (*ROWS, *EDGES)}


def test_long_rows_have_every_distribution_and_nan_and_a_single_row_the_extremes_that_others_could_hide() -> None:
    many, single = (once(OP)[place.key] for place in ROWS)
    assert many == {NORMAL, *OP.values, NAN}
    assert single >= {LARGE, NAN, INFINITE, MINUS_INF}


def test_an_edge_has_normal_numbers_and_if_a_term_vanishes_zeros_infinities_and_nan() -> None:
    scaled = workloads("float32", {"rows": 16, "cols": 64}, slope=0.5)
    edge = workloads("float32", {"rows": 2, "cols": 3}, slope=0.0)
    op = replace(OP, reference=lambda x, slope: x.relu() + 0 * slope, gpu=scaled, emulated=scaled, awkward=scaled)
    checks: list[Check] = []
    check_parameters((edge[0], program(clipped)), op, inspector(checks))
    assert {check.values for check in checks} == {NORMAL, ZERO, NAN, INFINITE}
    assert once(OP)[EDGES[0].key] == {NORMAL}


def test_shapes_with_a_size_of_one_have_rows_that_overflow_or_are_not_finite() -> None:
    checks: list[Check] = []
    (column,) = workloads("float32", {"rows": 4, "cols": 1})
    check_edge((column, program(clipped)), OP, inspector(checks))
    assert {one.values for one in checks if one.workload == column.key} >= {
        NORMAL,
        *OP.extremes[OP.extremes.index(OVERFLOWING) :],
    }


def test_a_distribution_that_no_rows_have_had_is_drawn_on_its_own() -> None:
    assert set(OP.values) <= {check.values for check in run(clipped)}


def test_an_extreme_from_which_an_op_is_exempt_is_not_drawn() -> None:
    exempt = replace(OP, exempt={NAN: "it is left open"})
    assert NAN not in {check.values for check in run(clipped, exempt)}


def drops_nan(tensors: Tensors) -> None:
    tensors["out"].copy_(torch.where(tensors["x"] > 0, tensors["x"], 0))


def multiplies_by_the_mask(tensors: Tensors) -> None:
    tensors["out"].copy_(tensors["x"] * (tensors["x"] > 0))


def loses_faint_numbers(tensors: Tensors) -> None:
    tensors["out"].copy_(torch.where(tensors["x"].abs() < 1e-6, 0, tensors["x"]).relu())


def adds_a_little_at_zero(tensors: Tensors) -> None:
    x = tensors["x"]
    tensors["out"].copy_(torch.where(x.any(1, keepdim=True), x.relu(), 1e-3))


def clips_large_numbers(tensors: Tensors) -> None:
    tensors["out"].copy_(tensors["x"].clamp(0, 1e6))


FAULTS = {
    NAN: drops_nan,
    INFINITE: clips_large_numbers,
    MINUS_INF: multiplies_by_the_mask,
    MINUTE: loses_faint_numbers,
    ZERO: adds_a_little_at_zero,
}


@each({f"{values} seed {seed}": (values, seed) for values in FAULTS for seed in range(10)})
def test_a_kernel_that_is_wrong_at_an_extreme_fails_every_time(values: str, seed: int) -> None:
    with pytest.raises(RejectedError, match=r"values: "):
        run(FAULTS[values], seed=seed)


def test_the_envelope_is_the_largest_of_each_size_parameter_and_tensor() -> None:
    places = workloads("float32", {"rows": 3, "cols": 100}, {"rows": 50, "cols": 2}, eps=0.5)
    tested = envelope(OP, [*places, *workloads("float32", {"rows": 1, "cols": 1}, eps=0.75)])
    assert dict(tested.largest) == {"rows": 50, "cols": 100, "eps": 0.75}
    assert tested.elements == 300
    assert dict(tested.of_tensors) == {"x": 300, "out": 300}


def test_the_envelope_has_the_elements_of_each_tensor() -> None:
    op = catalog.load("embedding")
    known = {**dict(op.emulated[0].dims)}
    table, output = (
        replace(op.emulated[0], dims=tuple({**known, **sizes}.items()))
        for sizes in ({"vocab": 10**6}, {"tokens": 10**7})
    )
    tested = dict(envelope(op, [table, output]).of_tensors)
    assert tested == {**op.elements(table), **{name: op.elements(output)[name] for name in ("indices", "out")}}


@each({f"seed {seed}": seed for seed in range(5)})
def test_a_kernel_that_does_nothing_in_a_graph_fails_only_in_a_graph(seed: int) -> None:
    def capture(_: Callable[[], object]) -> Callable[[], object]:
        return lambda: None

    looking = Inspector(
        ScriptedDevice(tools=Tools(capture=capture)), Arena("cpu"), random.Random(seed), [], lambda _phase: None
    )
    with pytest.raises(RejectedError, match="only in a CUDA graph"):
        check_extremes(compiled(clipped), OP, looking)  # type: ignore[arg-type]


def test_a_call_is_captured_once_for_one_dtype_and_replayed() -> None:
    captured: list[str] = []

    def capture(call: Callable[[], object]) -> Callable[[], object]:
        captured.append("captured")
        return call

    looking = Inspector(
        ScriptedDevice(tools=Tools(capture=capture)), Arena("cpu"), random.Random(1), [], lambda _phase: None
    )
    check_extremes(compiled(clipped, replace(OP, by_rows=False)), OP, looking)  # type: ignore[arg-type]
    assert len(captured) == 1


def test_a_reference_that_refuses_nan_leaves_them_undefined() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if bool(x.isnan().any()):
            raise ValueError("no NaN, please")
        return x.relu()

    run(drops_nan, replace(OP, reference=refuses, by_rows=False))


@pytest.mark.parametrize("by_rows", [True, False])
def test_an_extreme_at_which_pytorch_itself_is_inexact_is_left_open(by_rows: bool) -> None:
    def underflows(x: torch.Tensor) -> torch.Tensor:
        return x / x.square().sum(-1, keepdim=True).sqrt()

    def as_pytorch(tensors: Tensors) -> None:
        tensors["out"].copy_(underflows(tensors["x"]))

    op = replace(OP, reference=underflows, by_rows=by_rows, exempt={INFINITE: "open", MINUS_INF: "open"})
    met = {check.values for check in run_extremes(as_pytorch, op)}
    assert NAN in met


def softmaxed(tensors: Tensors) -> None:
    tensors["out"].copy_(torch.softmax(tensors["x"].double(), -1))


def doubled(tensors: Tensors) -> None:
    tensors["out"].copy_(2 * tensors["x"])


@pytest.mark.parametrize(("work", "every"), [(softmaxed, True), (doubled, False)])
def test_warming_up_checks_a_plain_kernel_and_ends_at_a_fault(work: Work, every: bool) -> None:
    device = ScriptedDevice(work=work)
    warm_up(Evaluator(device, lambda _phase: None))
    shapes = {tuple(tensors["x"].shape) for tensors in device.runs}
    small = [one for one in catalog.load("softmax").awkward if one.dtype == "float32"]
    assert (len(shapes) >= len(small)) == every
    assert shapes
