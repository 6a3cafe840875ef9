"""Workloads that differ from listed ones in a single parameter."""

import random
from dataclasses import replace

import pytest

from reference_ops import catalog
from reference_ops.op import Op, Workload
from reference_ops.parameters import with_one_change

MOST_BYTES = 2**18
WINDOWED = ("avg_pool1d", "max_pool2d_backward", "conv2d_bias", "conv1d", "depthwise_conv2d", "conv_transpose2d")


def anything(_: Workload) -> bool:
    return True


def known(workload: Workload) -> dict[str, float]:
    return dict((*workload.dims, *workload.parameters))


def changed(op: Op, seed: int = 1) -> tuple[Workload, ...]:
    return with_one_change(op, anything, random.Random(seed), MOST_BYTES)


def of(workload: Workload, *names: str) -> tuple[float, ...]:
    return tuple(known(workload)[name] for name in names)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_changed_workload_differs_from_a_listed_one_in_a_single_parameter(name: str) -> None:
    op = catalog.load(name)
    names = tuple(one for one in (*op.parameters, "r", "s", "taps") if one in known(op.listed[0]) and one not in "hw")
    listed = {of(one, *names) for one in op.listed}
    for workload in changed(op):
        assert op.fits(workload, MOST_BYTES)
        assert of(workload, *names) not in listed
        assert any(sum(a != b for a, b in zip(of(workload, *names), one, strict=True)) == 1 for one in listed)


@pytest.mark.parametrize(
    ("name", "usual"),
    [("max_pool2d", {"kernel": 2, "stride": 2}), ("conv2d_bias", {"r": 3, "s": 3, "stride": 1}),
     ("depthwise_conv2d", {"r": 3, "s": 3, "stride": 2}), ("dilated_conv2d", {"r": 3, "s": 3, "dilation": 2})],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
def test_usual_windows_have_once_a_padding_that_is_not_listed_with_them(
    name: str, usual: dict[str, int], seed: int
) -> None:
    op = catalog.load(name)
    listed = {known(one)["padding"] for one in op.listed if usual.items() <= known(one).items()}
    paddings = {known(one)["padding"] for one in changed(op, seed) if usual.items() <= known(one).items()}
    assert listed
    assert paddings - listed


@pytest.mark.parametrize("name", ["local_response_norm", "adamw", "sgd_momentum"])
def test_each_floating_point_parameter_is_changed_beside_each_listed_combination_of_the_others(name: str) -> None:
    op = catalog.load(name)
    for parameter in (one for one, value in op.parameters.items() if isinstance(value, float)):
        others = [one for one in op.parameters if one != parameter]
        listed = {of(one, *others, parameter) for one in op.listed}
        new = {of(one, *others, parameter) for one in changed(op)} - listed
        assert {one[:-1] for one in listed} <= {one[:-1] for one in new}


def test_an_integer_of_which_one_value_is_listed_does_not_change() -> None:
    op = catalog.load("max_pool2d")
    fixed = tuple(one for one in op.listed if known(one)["padding"] == 1)
    of_one = replace(op, gpu=fixed, emulated=fixed, awkward=())
    assert changed(of_one)
    assert {known(one)["padding"] for one in changed(of_one)} == {1}


def test_ops_with_a_single_parameter_or_none_have_no_changed_workloads() -> None:
    for name in ("softmax", "topk", "adaptive_avg_pool2d", "sliding_window_attention", "rms_norm"):
        assert not changed(catalog.load(name))
