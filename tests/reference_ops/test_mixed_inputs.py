"""Inputs whose rows come from several distributions in turn, and verdicts on their outputs."""

import random
from dataclasses import replace

import pytest
import torch
from each import each

from reference_ops import catalog
from reference_ops.inputs import LARGE_WEIGHTS, inputs_at, mixed_seed, mixtures_needed, row_groups, similar_seeds
from reference_ops.op import MIXED, NORMAL, Op, Tensors, Tolerance, tensors, workloads


def scaled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * weight


OP = Op(
    name="scaled",
    reference=scaled,
    inputs=tensors(x="rows cols", weight="cols"),
    outputs=tensors(out="rows cols", total="cols", count=""),
    gpu=workloads("float32", {"rows": 64, "cols": 512}),
    emulated=workloads("float32", {"rows": 64, "cols": 512}),
    flops=lambda dims: dims["rows"] * dims["cols"],
    values=("integers", "constant", "tiny"),
)
PLACE = OP.emulated[0]
OUT, TOTAL, COUNT = OP.outputs
SEEDS = 2 * LARGE_WEIGHTS * (1 + len(OP.values))  # enough to cover everything that a seed decides
EVEN, ODD = 0, 1  # seeds with and without integer rows, which require integer weights


def kind(row: torch.Tensor) -> str:
    """Return the distribution of a row."""
    if len(row.unique()) == 1:
        return "constant"
    if torch.equal(row, row.round()):
        return "integers"
    return "tiny" if row.abs().max() < 0.1 else NORMAL


def mixed(op: Op = OP, seed: int = EVEN) -> Tensors:
    return inputs_at(op, PLACE, seed, "cpu", MIXED)


def names(op: Op = OP, seed: int = EVEN) -> list[str]:
    return [part.values for part in row_groups(op, OUT, PLACE, MIXED, seed)]


@each({f"seed {seed}": seed for seed in range(SEEDS)})
def test_rows_follow_the_distributions_in_turn(seed: int) -> None:
    x, found = mixed(seed=seed)["x"], names(seed=seed)
    assert [kind(row) for row in x] == [found[row % len(found)] for row in range(len(x))]


def test_row_groups_divide_the_output_by_distribution() -> None:
    x = mixed()["x"]
    parts = row_groups(OP, OUT, PLACE, MIXED, EVEN)
    assert sum(len(x[part.rows]) for part in parts) == len(x)
    assert all({kind(row) for row in x[part.rows]} == {part.values} for part in parts)


def test_only_the_integer_rows_are_judged_exactly() -> None:
    assert [part.values for part in row_groups(OP, OUT, PLACE, MIXED, EVEN) if part.exact] == ["integers"]


def test_with_integer_rows_all_other_inputs_are_integers_too() -> None:
    weight = mixed()["weight"]
    assert torch.equal(weight, weight.round())


def test_every_other_seed_keeps_the_weights_normal_and_leaves_integers_out() -> None:
    weight = mixed(seed=ODD)["weight"]
    assert not torch.equal(weight, weight.round())
    assert sorted(names(seed=ODD)) == ["constant", "normal", "tiny"]


def test_with_few_rows_every_distribution_comes_first_for_some_seed() -> None:
    (place,) = workloads("float32", {"rows": 1, "cols": 512})
    seen = set()
    for seed in range(SEEDS):
        (part,) = row_groups(OP, OUT, place, MIXED, seed)
        assert kind(inputs_at(OP, place, seed, "cpu", MIXED)["x"][0]) == part.values
        seen.add(part.values)
    assert seen == {NORMAL, *OP.values}


@pytest.mark.parametrize("output", [TOTAL, COUNT], ids=["other first dim", "no dims"])
def test_an_output_without_the_rows_is_judged_as_a_whole(output: object) -> None:
    (part,) = row_groups(OP, output, PLACE, MIXED, EVEN)  # type: ignore[arg-type]
    assert (part.rows, part.exact) == (..., False)
    assert torch.zeros(())[part.rows].shape == ()


def test_a_single_distribution_gives_one_row_group() -> None:
    (part,) = row_groups(OP, OUT, PLACE, "integers", EVEN)
    assert (part.values, part.rows, part.exact) == ("integers", ..., True)


@pytest.mark.parametrize("first", range(9))
def test_a_mixed_seed_starts_with_the_given_distribution(first: int) -> None:
    op = replace(OP, values=("constant", "tiny"))
    expected = (NORMAL, *op.values)[first % 3]
    assert {names(op, mixed_seed(op, first, turn, random.Random(turn)))[0] for turn in range(12)} == {expected}


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 64])
def test_with_few_rows_the_number_of_mixtures_needed_is_exact(rows: int, *, by_rows: bool) -> None:
    op = replace(OP, values=("constant", "tiny"), by_rows=by_rows)
    place = replace(PLACE, dims=(("rows", rows), ("cols", 512)))
    turns = mixtures_needed(op, place)
    seeds = [mixed_seed(op, 5 + turn, 1, random.Random(turn)) for turn in range(turns)]
    met = [{part.values for part in row_groups(op, OUT, place, MIXED, seed)} for seed in seeds]
    assert set().union(*met) == {NORMAL, *op.values}
    assert turns == 1 or set().union(*met[1:]) < {NORMAL, *op.values}


@pytest.mark.parametrize("turn", range(4))
def test_one_mixed_seed_in_three_has_large_weights(turn: int) -> None:
    op = replace(OP, values=("constant", "tiny"))
    for first in range(12):
        weight = mixed(op, mixed_seed(op, first, turn, random.Random(first)))["weight"]
        assert bool(weight.abs().max() > 100) == (turn % LARGE_WEIGHTS == 0)


def test_mixed_seeds_with_the_same_start_differ() -> None:
    assert len({mixed_seed(OP, 2, 1, random.Random(seed)) for seed in range(20)}) == 20


@each({f"seed {seed}": seed for seed in range(SEEDS)})
def test_similar_seeds_differ_and_have_the_same_distributions(seed: int) -> None:
    others = similar_seeds(OP, seed, 5)
    large = bool(mixed(seed=seed)["weight"].abs().max() > 100)
    for other in others:
        assert row_groups(OP, OUT, PLACE, MIXED, other) == row_groups(OP, OUT, PLACE, MIXED, seed)
        assert bool(mixed(seed=other)["weight"].abs().max() > 100) == large
    drawn = [mixed(seed=other)["x"][names(seed=seed).index(NORMAL)] for other in (seed, *others)]
    assert len({tuple(row.tolist()) for row in drawn}) == 1 + len(others)


def test_an_op_whose_rows_depend_on_each_other_gets_one_distribution_at_a_time() -> None:
    op = replace(OP, by_rows=False)
    for seed in range(8):
        (name,) = names(op, seed)
        assert {kind(row) for row in mixed(op, seed)["x"]} == {name}
    assert {names(op, seed)[0] for seed in range(SEEDS)} == {NORMAL, *OP.values}


def test_without_shared_dims_all_inputs_have_one_distribution() -> None:
    op = replace(OP, outputs=tensors(out="2"))
    inputs = inputs_at(op, PLACE, EVEN, "cpu", "integers")
    assert all(torch.equal(tensor, tensor.round()) for tensor in inputs.values())


def test_weights_stay_normal_with_any_distribution_of_rows() -> None:
    tiny = inputs_at(OP, PLACE, EVEN, "cpu", "tiny")
    assert kind(tiny["x"].flatten()) == "tiny"
    assert kind(tiny["weight"]) == NORMAL


def test_integer_inputs_and_the_ops_draw_do_not_depend_on_the_distribution() -> None:
    def draw(drawn: Tensors, generator: torch.Generator) -> None:
        drawn["index"].random_(0, 3, generator=generator)
        drawn["weight"].fill_(2)

    op = replace(OP, inputs=tensors(x="rows cols", weight="cols", index="int64[rows]"), draw=draw)
    inputs = mixed(op)
    assert inputs["index"].dtype == torch.int64
    assert set(inputs["index"].tolist()) == {0, 1, 2}
    assert set(inputs["weight"].tolist()) == {2}


@each({name: name for name in catalog.names()})
def test_the_same_seed_gives_the_same_mixture(name: str) -> None:
    op = catalog.load(name)
    first, second = (inputs_at(op, op.emulated[0], 3, "cpu", MIXED) for _ in range(2))
    assert all(torch.equal(first[spec.name], second[spec.name]) for spec in op.inputs)


def test_the_error_for_an_unknown_distribution_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="`nomal` is not a distribution of inputs; there are constant, faint"):
        replace(OP, values=("nomal",))


def test_the_error_names_a_baseline_free_output_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="`indices`, which is not an output"):
        replace(OP, baseline_free=("indices",))


def test_an_invalid_workload_is_rejected() -> None:
    with pytest.raises(ValueError, match="rows=64 cols=512 float32 is not `valid`"):
        replace(OP, valid=lambda known: known["cols"] <= known["rows"])


def test_a_given_input_must_be_an_input_of_the_op() -> None:
    with pytest.raises(ValueError, match="`mean`, which is not an input"):
        replace(OP, tolerance=Tolerance(given=("mean",)))
