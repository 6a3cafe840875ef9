"""Workloads with unusual windows: larger than their input, or overlapping."""

import pytest

from reference_ops import catalog
from reference_ops.op import DTYPES, Workload
from reference_ops.windows import overlapping_windows, windows_past_borders

MOST_BYTES = 2**18


def anything(_: Workload) -> bool:
    return True


def known(workload: Workload) -> dict[str, float]:
    return dict((*workload.dims, *workload.parameters))


@pytest.mark.parametrize(
    ("name", "window", "over"),
    [("max_pool1d", "kernel", "l"), ("avg_pool2d_backward", "kernel", "w"), ("depthwise_conv2d", "r", "height"),
     ("depthwise_conv2d_backward_weight", "s", "width"), ("conv2d_channels_last", "s", "width"),
     ("conv1d", "taps", "length")],
)  # fmt: skip
def test_a_window_is_once_larger_by_one_than_its_input(name: str, window: str, over: str) -> None:
    op = catalog.load(name)
    (workload,) = windows_past_borders(op, anything, MOST_BYTES)
    assert op.is_valid(workload)
    assert op.nbytes(workload) <= MOST_BYTES
    assert known(workload)[window] == 1 + known(workload)[over] > 1


@pytest.mark.parametrize("name", ["avg_pool1d", "max_pool2d", "max_pool3d_backward", "conv2d", "conv1d"])
def test_windows_that_pass_borders_lie_at_several_places(name: str) -> None:
    op = catalog.load(name)
    (workload,) = windows_past_borders(op, anything, MOST_BYTES)
    sizes = op.sizes(workload)
    assert all(sizes[size] > 1 for size in ("ol", "oh", "ow", "od", "out_length") if size in sizes)


def test_no_window_passes_borders_if_the_op_has_no_window_or_the_kernel_refuses() -> None:
    for name in ("softmax", "gemm", "upsample_bilinear", "topk"):
        assert not windows_past_borders(catalog.load(name), anything, MOST_BYTES)
    assert not windows_past_borders(catalog.load("max_pool1d"), lies_within, MOST_BYTES)


@pytest.mark.parametrize(
    ("name", "kernel"), [("max_pool2d_backward", 11), ("avg_pool1d", 51), ("max_pool3d_backward", 7)]
)
def test_large_windows_begin_at_every_place_once(name: str, kernel: int) -> None:
    op = catalog.load(name)
    drawn = overlapping_windows(op, anything, MOST_BYTES)
    assert [DTYPES[workload.dtype].itemsize for workload in drawn] == [4, 2]
    for workload in drawn:
        assert op.is_valid(workload)
        assert (known(workload)["kernel"], known(workload)["stride"], known(workload)["padding"]) == (kernel, 1, 0)


def test_windows_overlap_only_where_parameters_give_a_window_and_a_stride() -> None:
    for name in ("softmax", "conv1d", "topk", "group_norm", "conv_transpose2d"):
        assert not overlapping_windows(catalog.load(name), anything, MOST_BYTES)
    assert not overlapping_windows(catalog.load("max_pool1d"), lambda w: known(w)["kernel"] < 6, MOST_BYTES)


def lies_within(workload: Workload) -> bool:
    return known(workload)["kernel"] <= known(workload)["l"]
