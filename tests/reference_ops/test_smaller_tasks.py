"""Smaller and awkward sizes of tasks, and the weights that are left out because no output depends on them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reference_ops import catalog
from reference_ops.op import Op

Problem = Callable[..., Op]


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    """Return a function that writes a problem whose module takes one tensor, and loads it."""

    def written(module: str, sizes: str, shape: str) -> Op:
        path = tmp_path / "1_Problem.py"
        path.write_text(f"""
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {module}

    def forward(self, x):
        return self.inner(x)

{sizes}

def get_inputs():
    return [torch.rand({shape})]

def get_init_inputs():
    return []
""")
        return catalog.load(str(path))

    return written


def test_groups_have_several_channels(problem: Problem) -> None:
    sizes = "batch, features, groups, height, width = 112, 64, 8, 512, 512"
    grouped = problem("nn.GroupNorm(groups, features)", sizes, "batch, features, height, width")
    assert {grouped.sizes(workload)["features"] for workload in grouped.emulated} == {16}


def test_each_of_several_equal_dims_is_odd_in_some_workload(problem: Problem) -> None:
    sizes = "batch, depth, height, width, length = 64, 64, 64, 64, 64"
    shown = problem("nn.Tanh()", sizes, "batch, depth, height, width, length")
    odd = {name for workload in shown.awkward for name, size in workload.dims if size % 2}
    assert odd == {"batch", "depth", "height", "width", "length"}
    assert max(sum(size % 2 for _, size in workload.dims) for workload in shown.awkward) == 5


def test_pooling_has_several_windows_in_each_direction(problem: Problem) -> None:
    sizes = "batch, channels, height, width = 16, 64, 2048, 2048"
    pooled = problem("nn.AvgPool2d(11)", sizes, "batch, channels, height, width")
    out = [pooled.shape(pooled.outputs[0], workload) for workload in pooled.emulated]
    assert any(min(shape[2:]) > 1 for shape in out)


def test_a_task_too_large_to_emulate_is_checked_at_smaller_sizes(problem: Problem) -> None:
    large = problem("nn.Conv2d(3, 96, 11, 4, 2)", "batch = 256", "batch, 3, 224, 224")
    assert large.emulated == ()
    assert [dict(workload.dims) for workload in large.awkward] == [{"batch": 8}, {"batch": 1}, {"batch": 3}]
    assert "heavy_tail" in large.values


def test_size_1_is_not_used_if_it_is_valid_only_by_broadcasting(problem: Problem) -> None:
    """A depthwise convolution of one channel accepts any number of outputs."""
    sizes = "batch, inside, outside, width = 64, 128, 128, 512"
    module = "nn.Conv1d(inside, outside, 3, groups=inside)"
    depthwise = problem(module, sizes, "batch, inside, width")
    assert all(depthwise.sizes(w).get("inside") == depthwise.sizes(w).get("outside") for w in depthwise.awkward)
    assert {dict(workload.dims)["batch"] % 2 for workload in depthwise.awkward} == {0, 1}


@pytest.mark.parametrize(("groups", "kept"), [(16, True), (64, False)], ids=["several channels", "one"])
def test_a_bias_that_a_normalisation_cancels_is_left_out(problem: Problem, groups: int, kept: bool) -> None:
    sizes = f"batch, inside, outside, groups, height, width = 128, 8, 64, {groups}, 128, 128"
    module = "nn.Sequential(nn.Conv2d(inside, outside, 3), nn.GroupNorm(groups, outside))"
    names = [spec.name for spec in problem(module, sizes, "batch, inside, height, width").inputs]
    assert ("inner_0_bias" in names) is kept
    assert "inner_1_bias" in names


def test_no_weight_is_left_out_if_all_outputs_are_zero(problem: Problem) -> None:
    """With the task's own inputs, every output is zero."""
    module = "nn.Sequential(nn.Linear(inside, outside), nn.Threshold(1e4, 0))"
    dead = problem(module, "batch, inside, outside = 1024, 512, 256", "batch, inside")
    assert [spec.name for spec in dead.inputs] == ["x", "inner_0_weight", "inner_0_bias"]


def test_an_argument_may_have_the_name_of_an_attribute(tmp_path: Path) -> None:
    path = tmp_path / "1_Namesakes.py"
    path.write_text("""
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h0 = torch.randn(batch, hidden)

    def forward(self, x, h0):
        return x @ h0.T

batch, hidden = 512, 256

def get_inputs():
    return [torch.rand(batch, hidden), torch.rand(batch, hidden)]

def get_init_inputs():
    return []
""")
    assert [spec.name for spec in catalog.load(str(path)).inputs] == ["x", "h0_given"]
