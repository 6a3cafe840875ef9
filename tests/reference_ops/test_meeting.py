"""Special values of two inputs at the same element: all pairs of them, in every evaluation."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from each import each

from reference_ops import catalog
from reference_ops.inputs import has_rows_of_extremes, inputs_at, meeting_seeds
from reference_ops.meeting import meetings
from reference_ops.op import EQUAL_INFINITIES, MEETING, OPPOSITE_INFINITIES, Op, TensorSpec, Workload

Met = tuple[str, str, str, str]  # two inputs, and the value of each
SPECIAL = (math.inf, -math.inf, math.nan)
MEETING_OPS = [name for name in catalog.names() if catalog.load(name).meeting]
ROTARY, SGD, MSE, GEGLU = (catalog.load(name) for name in ("rotary_embedding", "sgd_momentum", "mse", "geglu"))


def word(value: float) -> str:
    return repr(abs(value) if math.isnan(value) else value)


def aligned(tensor: torch.Tensor, spec: TensorSpec, dims: tuple[str, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor broadcast to these dims."""
    order = sorted(range(len(spec.dims)), key=lambda at: dims.index(spec.dims[at]))
    sizes = [size if dim in spec.dims else 1 for dim, size in zip(dims, shape, strict=True)]
    return tensor.permute(order).reshape(sizes).expand(shape).reshape(-1)


def met_in(op: Op, workload: Workload, inputs: dict[str, torch.Tensor]) -> Iterator[Met]:
    """Yield what meets in these inputs: pairs of values that are not both finite."""
    for some, other in op.meeting:
        wide = max((some, other), key=lambda spec: len(spec.dims))
        shape = op.shape(wide, workload)
        one, two = (aligned(inputs[spec.name], spec, wide.dims, shape) for spec in (some, other))
        special = ~(one.isfinite() & two.isfinite())
        for a, b in zip(one[special].tolist(), two[special].tolist(), strict=True):
            yield some.name, other.name, word(a), word(b)


def drawn(op: Op, workload: Workload, values: str, seed: int) -> list[dict[str, torch.Tensor]]:
    seeds = meeting_seeds(op, workload, values, random.Random(seed))
    return [inputs_at(op, workload, one, "cpu", values) for one in seeds]


@each({f"{name} {seed}": (name, seed) for name in MEETING_OPS for seed in range(3)})
def test_all_special_values_of_two_inputs_meet_in_every_evaluation(name: str, seed: int) -> None:
    op = catalog.load(name)
    infinite_or_not = [*itertools.product(SPECIAL[:2], repeat=2)]
    unlike = [pair for pair in itertools.permutations((*SPECIAL, 0.0), 2) if not {*SPECIAL[:2]} >= {*pair}]
    expected = {
        (a.name, b.name, word(one), word(two)) for a, b in op.meeting for one, two in (*infinite_or_not, *unlike)
    }
    for workload in (op.awkward[0], min(op.emulated, key=op.nbytes)):
        met = {
            one
            for values in MEETING
            for inputs in drawn(op, workload, values, seed)
            for one in met_in(op, workload, inputs)
        }
        assert expected <= met


@pytest.mark.parametrize(("values", "sign"), [(EQUAL_INFINITIES, 1), (OPPOSITE_INFINITIES, -1)])
def test_infinities_of_two_inputs_are_at_the_same_places(values: str, sign: int) -> None:
    op = catalog.load("add_layer_norm")
    (inputs,) = drawn(op, op.emulated[0], values, 5)
    x, residual = inputs["x"], inputs["residual"]
    assert torch.equal(x.isinf(), residual.isinf())
    assert torch.equal(x[x.isinf()], sign * residual[x.isinf()])
    assert not bool(inputs["weight"].isinf().any())


def test_two_of_three_inputs_have_infinities_at_a_place() -> None:
    (inputs,) = drawn(SGD, SGD.emulated[-1], OPPOSITE_INFINITIES, 5)
    infinite = torch.stack([inputs[name].isinf() for name in ("param", "grad", "momentum_buffer")])
    assert {*infinite.sum(0).tolist()} == {0, 2}
    assert bool(infinite.any(1).all())


def test_a_draw_has_one_meeting_if_the_results_of_others_would_hide_it() -> None:
    for op, workload in ((MSE, MSE.emulated[-1]), (GEGLU, replace(GEGLU.emulated[0], dims=(("n", 1),)))):
        assert has_rows_of_extremes(op) == (op is GEGLU)
        for values in MEETING:
            draws = drawn(op, workload, values, 1)
            assert len(draws) == len(meetings(op, values))
            assert all(len([*met_in(op, workload, inputs)]) == 1 for inputs in draws)


def test_many_rows_need_one_draw_and_some_rows_remain_finite() -> None:
    for values in MEETING:
        (inputs,) = drawn(GEGLU, GEGLU.emulated[0], values, 1)
        share = len([*met_in(GEGLU, GEGLU.emulated[0], inputs)]) / len(inputs["gate"])
        assert 0.1 < share < 0.4


def test_an_input_meets_a_broadcast_input() -> None:
    assert {(a.name, b.name) for a, b in ROTARY.meeting} == {("x", "cos"), ("x", "sin"), ("cos", "sin")}


@pytest.mark.parametrize("name", ["relu", "gelu_backward", "causal_attention", "rms_norm"])
def test_nothing_meets_in_a_single_input_in_gradients_or_where_infinities_are_left_open(name: str) -> None:
    assert not {*MEETING} & {*catalog.load(name).arrangements}
