"""Tasks that compute the same as an op of the catalog, found by running both."""

from pathlib import Path

import pytest

from evolve.proposers.adapted import equivalents
from reference_ops import catalog
from reference_ops.op import Op

PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, shape=None):
        super().__init__()
        self.norm = nn.LayerNorm(shape) if shape else None

    def forward(self, x):
        return {forward}

batch, features, width = 32, 48, 64

def get_inputs():
    return [torch.randn({shape})]

def get_init_inputs():
    return {init}
"""


def problem(folder: Path, forward: str, shape: str = "batch, features", init: str = "[]") -> Op:
    (folder / "1_Problem.py").write_text(PROBLEM.format(forward=forward, shape=shape, init=init))
    return catalog.load(f"{folder}/1_Problem.py")


@pytest.mark.parametrize(
    ("forward", "shape", "name", "dims"),
    [
        ("torch.softmax(x, 1)", "batch, features", "softmax", {"rows": "batch", "cols": "features"}),
        ("torch.softmax(x, -1)", "batch, features, width", "softmax", {"rows": "batch * features", "cols": "width"}),
        ("torch.clamp(x, min=0)", "batch, features, width", "relu", {"n": "batch * features * width"}),
        ("x * torch.sigmoid(x)", "batch, features", "silu", {"n": "batch * features"}),
        ("torch.nn.functional.gelu(x)", "batch, features", "gelu", {"n": "batch * features"}),
        ("torch.nn.functional.gelu(x, approximate='tanh')", "batch, features", "gelu_tanh", {"n": "batch * features"}),
    ],
)
def test_a_task_is_recognised_by_its_results(
    tmp_path: Path, forward: str, shape: str, name: str, dims: dict[str, str]
) -> None:
    (equivalent,) = equivalents(problem(tmp_path, forward, shape))
    assert (equivalent.op.name, dict(equivalent.dims)) == (name, dims)
    assert dict(equivalent.tensors) == {"x": "x", "out": "out"}


def test_weights_and_parameters_are_matched_too(tmp_path: Path) -> None:
    (equivalent,) = equivalents(problem(tmp_path, "self.norm(x)", "batch, features, width", "[(features, width)]"))
    assert equivalent.op.name == "layer_norm"
    assert dict(equivalent.dims) == {"rows": "batch", "cols": "features * width"}
    assert dict(equivalent.tensors) == {"x": "x", "weight": "norm_weight", "bias": "norm_bias", "out": "out"}
    assert equivalent.parameters == {"eps": 1e-5}


@pytest.mark.parametrize(
    "forward",
    [
        "torch.softmax(x, 0)",
        "torch.relu(x) * 1.0001",
        "torch.nn.functional.relu6(x * 3)",
        "x.sum()",
        "x.unfold(1, 2, 2)",
    ],
)
def test_a_task_that_only_resembles_an_op_has_no_equivalent(tmp_path: Path, forward: str) -> None:
    assert equivalents(problem(tmp_path, forward)) == []


def test_an_equivalent_is_found_despite_a_wrong_name(tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text("import torch\ndef my_softmax(x):\n    return torch.relu(x)\n")
    (tmp_path / "inputs.py").write_text("import torch\nexamples = [lambda: torch.randn(8, 64)]\n")
    (equivalent,) = equivalents(catalog.load(f"{tmp_path}/softmax.py:my_softmax@{tmp_path}/inputs.py"))
    assert equivalent.op.name == "relu"
