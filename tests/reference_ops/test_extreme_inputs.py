"""The extremes of numbers in inputs: whole tensors, rows, one input at a time, and exemptions."""

import math
import random
from dataclasses import dataclass
from typing import cast

import pytest
import torch
from chosen_ops import some
from drawn_inputs import drawn, nan_at
from each import each

from reference_ops import catalog, distributions
from reference_ops.distributions import EXTREME_DRAWS
from reference_ops.inputs import inputs_at, meets_extremes_by_rows, row_groups, seeds_in_turn, similar_seeds
from reference_ops.op import (
    EXTREME_ROWS,
    EXTREMES,
    INFINITE,
    MINUS_INF,
    MINUTE,
    NAN,
    NOT_FINITE,
    SAVED_INFINITE,
    SAVED_NAN,
    SUBNORMAL,
    ZERO,
    ZERO_WEIGHTS,
    Op,
    Workload,
)
from reference_ops.special_values import MOST_ON_HOST, SEEDS_ALIKE, for_rows


@each({name: name for name in catalog.names()}, quick=some())
def test_every_extreme_and_arrangement_of_an_op_can_be_drawn_and_computed(name: str) -> None:
    op = catalog.load(name)
    for workload in (op.emulated[0], op.awkward[0], op.awkward[-1]):
        for values in (*op.extremes, *op.arrangements, EXTREME_ROWS):
            outputs = op.call(inputs_at(op, workload, 3, "cpu", values), workload)
            assert len(outputs) == len(op.outputs), values


# log_alpha contains the log of zero
@each({name: name for name in catalog.names() if name != "ctc_loss_backward"}, quick=some())
def test_a_finite_extreme_remains_finite_after_an_op_has_drawn_its_inputs(name: str) -> None:
    op = catalog.load(name)
    of_dtypes = {workload.dtype: workload for workload in op.emulated}
    for workload in of_dtypes.values():
        for values in set(op.extremes) - set(NOT_FINITE):
            inputs = inputs_at(op, workload, 3, "cpu", values)
            assert all(bool(tensor.float().isfinite().all()) for tensor in inputs.values()), values


def test_there_is_a_draw_for_every_extreme() -> None:
    # these two are drawn only for some inputs
    assert EXTREME_DRAWS.keys() == set(EXTREMES) - {SAVED_NAN, SAVED_INFINITE}


def test_extremes_are_drawn_for_whole_tensors() -> None:
    softmax = catalog.load("softmax")
    assert bool((drawn(softmax, ZERO)["x"] == 0).all())
    assert float(drawn(softmax, MINUTE)["x"].abs().max()) < 1e-6
    subnormal = drawn(softmax, SUBNORMAL)["x"].abs()
    assert 0 < float(subnormal.max()) < torch.finfo(torch.float32).smallest_normal


def test_a_few_rows_have_one_nan_each_and_the_others_no_nan() -> None:
    count = drawn(catalog.load("softmax"), NAN)["x"].isnan().sum(1)
    assert 2 <= int((count == 1).sum()) < len(count)
    assert int(count.max()) == 1


def test_infinities_of_both_signs_are_drawn() -> None:
    x = drawn(catalog.load("softmax"), INFINITE)["x"]
    assert bool((x == math.inf).any())
    assert bool((x == -math.inf).any())


@pytest.mark.parametrize("seed", range(6))
def test_two_values_that_clash_are_neighbours_in_some_rows_and_farther_apart_in_others(seed: int) -> None:
    tensor = torch.empty(64, 100)
    distributions.fill(tensor, "clashing", torch.Generator().manual_seed(seed))
    places = [row.isfinite().logical_not().nonzero().view(-1).tolist() for row in tensor]
    apart = {(pair[1] - pair[0]) % 100 in (1, 99) for pair in places if pair}
    assert {len(pair) for pair in places} == {0, 2}
    assert apart == {True, False}


@pytest.mark.parametrize(("cols", "most"), [(1, 1), (2, 2)])
def test_short_rows_hold_as_many_values_that_clash_as_there_is_room_for(cols: int, most: int) -> None:
    tensor = torch.empty(64, cols)
    distributions.fill(tensor, "clashing", torch.Generator().manual_seed(3))
    assert set(tensor.isfinite().logical_not().sum(dim=1).tolist()) == {0, most}


@pytest.mark.parametrize("shape", [(64,), (64, 48), (64, 8, 3, 3)], ids=str)
def test_rows_and_columns_of_a_weight_are_zero_and_the_others_unchanged(shape: tuple[int, ...]) -> None:
    before = torch.rand(shape) + 1
    weight = before.clone()
    distributions.change_weight(weight, ZERO_WEIGHTS, torch.Generator().manual_seed(5), dtype="float32")
    rows = (weight == 0).reshape(64, -1).all(dim=1)
    assert 16 < int(rows.sum()) < 48
    assert len(shape) == 1 or (weight == 0).reshape(-1, shape[-1]).all(dim=0).any()
    assert torch.equal(weight[weight != 0], before[weight != 0])
    assert (weight[~rows] != 0).any()


def test_a_weight_that_is_a_single_number_is_zero_at_some_seed() -> None:
    found = set()
    for seed in range(8):
        weight = torch.ones(())
        distributions.change_weight(weight, ZERO_WEIGHTS, torch.Generator().manual_seed(seed), dtype="float32")
        found.add(float(weight))
    assert found == {0.0, 1.0}


def test_some_rows_are_entirely_minus_infinity() -> None:
    whole = (drawn(catalog.load("softmax"), MINUS_INF)["x"] == -math.inf).all(1)
    assert 2 <= int(whole.sum()) < len(whole)


def test_only_the_gradients_of_a_backward_op_are_zero() -> None:
    inputs = drawn(catalog.load("gelu_backward"), ZERO)
    assert bool((inputs["grad_out"] == 0).all())
    assert not bool((inputs["x"] == 0).any())


def test_an_op_leaves_out_the_extremes_from_which_it_is_exempt() -> None:
    sort = catalog.load("sort")
    assert NAN in sort.exempt
    assert NAN not in sort.extremes
    assert INFINITE in sort.extremes


def test_an_exemption_from_an_unknown_extreme_is_refused() -> None:
    softmax = catalog.load("softmax")
    with pytest.raises(ValueError, match="`exempt` names `nan`"):
        Op(
            "mine", softmax.reference, softmax.inputs, softmax.outputs, softmax.gpu, softmax.emulated, softmax.flops,
            exempt={"nan": "by mistake"},
        )  # fmt: skip


def test_one_draw_has_rows_of_every_extreme() -> None:
    softmax = catalog.load("softmax")
    x = drawn(softmax, EXTREME_ROWS)["x"]
    assert bool((x == 0).all(1).any())
    assert bool((x.isnan().sum(1) == 1).any())
    assert bool((x == -math.inf).all(1).any())
    groups = row_groups(softmax, softmax.outputs[0], softmax.emulated[0], EXTREME_ROWS, 5)
    assert {group.values for group in groups} == set(softmax.extremes)
    assert all(bool((x[group.rows] == 0).all()) == (group.values == ZERO) for group in groups)


def test_similar_seeds_draw_the_same_extreme_in_the_same_rows() -> None:
    softmax = catalog.load("softmax")
    at = softmax.outputs[0], softmax.emulated[0], EXTREME_ROWS
    groups = row_groups(softmax, *at, 5)
    assert all(row_groups(softmax, *at, seed) == groups for seed in similar_seeds(softmax, 5, 4))


def test_extremes_share_a_draw_only_where_each_row_of_every_output_depends_on_one_row() -> None:
    assert meets_extremes_by_rows(catalog.load("softmax"), catalog.load("softmax").emulated[0])
    layer_norm = catalog.load("layer_norm_backward")  # gradients of weights sum over the rows
    assert not meets_extremes_by_rows(layer_norm, layer_norm.emulated[0])
    assert not meets_extremes_by_rows(catalog.load("softmax"), catalog.load("softmax").awkward[-1])


def rows_with_nan(op: str, workload: Workload, seed: int) -> dict[str, set[int]]:
    inputs = inputs_at(catalog.load(op), workload, seed, "cpu", NAN)
    return {
        name: {row for row, values in enumerate(tensor) if bool(values.isnan().any())}
        for name, tensor in inputs.items()
    }


@pytest.mark.parametrize("seed", range(6))
def test_each_of_several_inputs_has_nan_in_a_row_that_is_finite_in_the_others(seed: int) -> None:
    op = catalog.load("cosine_similarity")
    for workload in (*op.emulated, *op.awkward):
        if op.shape(op.inputs[0], workload)[0] > len(op.inputs):
            rows = rows_with_nan("cosine_similarity", workload, seed)
            assert rows["x"] - rows["y"]
            assert rows["y"] - rows["x"]


def test_in_a_single_row_one_input_alone_may_have_nan_and_each_does_at_some_seed() -> None:
    workload = Workload("float32", (("n", 1),), catalog.load("adamw").emulated[0].parameters)
    found = [rows_with_nan("adamw", workload, (turn + 1) * SEEDS_ALIKE - 1) for turn in range(4)]
    with_nan = [{name for name, rows in each_draw.items() if rows} for each_draw in found]
    assert sorted(map(sorted, with_nan)) == [["exp_avg"], ["exp_avg_sq"], ["grad"], ["param"]]


def test_inputs_that_are_computed_from_others_have_no_rows_of_their_own() -> None:
    backward = catalog.load("attention_backward")  # its `out` and `lse` are computed from q, k and v
    single = next(one for one in backward.awkward if dict(one.dims)["batch"] == 1)
    assert len(seeds_in_turn(backward, single, SAVED_NAN, random.Random(1))) == len("qkv")
    assert len(seeds_in_turn(backward, single, NAN, random.Random(1))) == len(["grad_out"])
    loss = catalog.load("mse_backward")  # its only gradient is a single number
    assert seeds_in_turn(loss, loss.awkward[0], NAN, random.Random(1)) == []


@pytest.mark.parametrize(("name", "draws"), [("cosine_similarity", 1), ("adamw", 4), ("gelu", 1)])
def test_in_turn_each_input_ends_with_nan_where_the_others_are_finite(name: str, draws: int) -> None:
    op = catalog.load(name)
    workload = next(one for one in op.awkward if max(dict(one.dims).values()) > 30)
    seeds = seeds_in_turn(op, workload, NAN, random.Random(1))
    assert len(seeds) == draws
    alone = set()
    for seed in seeds:
        inputs = inputs_at(op, workload, seed, "cpu", NAN)
        for row in range(workload.dims[0][1]):
            ending = [one for one, values in inputs.items() if bool(values[row].reshape(-1)[-1].isnan())]
            others = [one for one, values in inputs.items() if one not in ending and bool(values[row].isfinite().all())]
            alone |= {*ending} if len(ending) + len(others) == len(inputs) and len(ending) == 1 else set()
    assert alone == {spec.name for spec in op.inputs}


def test_a_backward_op_gets_nan_in_one_gradient_or_saved_tensor_at_a_time() -> None:
    assert nan_at("gelu_backward", NAN) == {"grad_out"}
    assert nan_at("gelu_backward", SAVED_NAN) == {"x"}


def test_an_op_may_exempt_nan_altogether() -> None:
    assert not catalog.load("sort").counted_nan
    assert not catalog.load("softmax").counted_nan  # softmax has no exemption for NaN


@dataclass
class OnAGpu:
    """What a GPU's generator offers on the host: its seed and its progress."""

    state: tuple[int, ...]
    device: torch.device = torch.device("cuda")  # noqa: RUF009 - a constant

    def get_state(self) -> torch.Tensor:
        return torch.tensor(self.state, dtype=torch.uint8)


def test_places_of_few_rows_are_drawn_on_the_host_from_the_state_of_the_gpus_generator() -> None:
    def drawn(state: tuple[int, ...], rows: int) -> list[float]:
        own = for_rows(rows, cast("torch.Generator", OnAGpu(state)))
        assert own.device.type == "cpu"
        return torch.rand(8, generator=own).tolist()

    assert drawn((1, 0), 5) == drawn((1, 0), MOST_ON_HOST)
    assert len({tuple(drawn(state, 5)) for state in ((1, 0), (1, 4), (2, 0), (2, 4))}) == 4
    many = cast("torch.Generator", OnAGpu((1, 0)))
    assert for_rows(MOST_ON_HOST + 1, many) is many
    host = torch.Generator()
    assert for_rows(5, host) is host
