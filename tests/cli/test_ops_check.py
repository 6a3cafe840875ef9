"""`evolve ops --check` lists wrong results that would not be detected, and fails if it finds any."""

import json
from pathlib import Path

import pytest
from command import TWICE
from commandline import evolve

Capture = pytest.CaptureFixture[str]
BLIND = """
import torch
from reference_ops.op import Op, tensors, workloads

def forgetful(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return 2 * x

op = Op(
    name="forgetful",
    reference=forgetful,
    inputs=tensors(x="rows cols", weight="cols"),
    outputs=tensors(out="rows cols"),
    gpu=workloads("float32", {"rows": 512, "cols": 1024}),
    emulated=workloads("float32", {"rows": 8, "cols": 64}),
    flops=lambda dims: dims["rows"] * dims["cols"],
)
"""


@pytest.fixture
def blind(tmp_path: Path) -> Path:
    path = tmp_path / "forgetful.py"
    path.write_text(BLIND)
    return path


def check(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    return evolve(capsys, "ops", "--check", "--device", "emulated", *arguments)


def test_an_op_without_blind_spots_has_one_line(capsys: Capture) -> None:
    code, output, _ = check(capsys, "embedding")
    assert code == 0
    assert output == "embedding  12 workloads × 8 distributions: every altered result was detected\n"


def test_an_op_with_a_blind_spot_fails_with_the_reason(blind: Path, capsys: Capture) -> None:
    code, output, _ = check(capsys, blind)
    assert code == 1
    assert "forgetful  1 workload × 8 distributions: 1 blind spot" in output
    assert "rows=8 cols=64 float32, normal values: a kernel that ignored `weight` would pass" in output


def test_ops_can_be_given_by_name_and_by_file(blind: Path, capsys: Capture) -> None:
    code, output, _ = check(capsys, "embedding", TWICE, blind)
    assert code == 1
    assert [line.split()[0] for line in output.splitlines() if line[0] != " "] == ["embedding", "twice", "forgetful"]


def test_json_has_every_blind_spot_and_its_corruption(blind: Path, capsys: Capture) -> None:
    code, output, _ = check(capsys, blind, "--json")
    (facts,) = json.loads(output)
    assert code == 1
    assert (facts["op"], facts["device"], facts["distributions"][0]) == ("forgetful", "emulated", "normal")
    assert [(spot["workload"], spot["values"], spot["corruption"]) for spot in facts["blind"]] == [
        ("rows=8 cols=64 float32", "normal", "`weight` ignored")
    ]


def test_an_unknown_op_is_an_error_with_a_similar_name(capsys: Capture) -> None:
    code, _, errors = check(capsys, "sofmax")
    assert code == 2
    assert "Did you mean softmax" in errors


def test_without_check_the_named_ops_are_listed(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "ops", "gelu", "topk", "--json")
    assert code == 0
    assert [facts["op"] for facts in json.loads(output)] == ["gelu", "topk"]
