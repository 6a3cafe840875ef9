"""`evolve ops --check` says in words what would go unnoticed, and fails when anything would."""

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


def test_a_sound_op_has_a_line_with_what_was_checked(capsys: Capture) -> None:
    code, output, _ = check(capsys, "gelu")
    assert code == 0
    assert output == "gelu  12 workloads × 8 distributions: all that was spoiled was found out\n"


def test_a_blind_op_is_told_why_and_fails(blind: Path, capsys: Capture) -> None:
    code, output, _ = check(capsys, blind)
    assert code == 1
    assert "forgetful  1 workload × 8 distributions: 1 blind spot" in output
    assert "rows=8 cols=64 float32, normal values: a kernel that ignored `weight` would pass" in output


def test_several_ops_have_a_line_each_by_name_and_by_file(blind: Path, capsys: Capture) -> None:
    code, output, _ = check(capsys, "softmax", TWICE, blind)
    assert code == 1
    assert [line.split()[0] for line in output.splitlines() if line[0] != " "] == ["softmax", "twice", "forgetful"]


def test_as_json_every_blind_spot_is_listed_with_what_was_done(blind: Path, capsys: Capture) -> None:
    code, output, _ = check(capsys, blind, "--json")
    (facts,) = json.loads(output)
    assert code == 1
    assert (facts["op"], facts["device"], facts["distributions"][0]) == ("forgetful", "emulated", "normal")
    assert [(spot["workload"], spot["values"], spot["corruption"]) for spot in facts["blind"]] == [
        ("rows=8 cols=64 float32", "normal", "`weight` ignored")
    ]


def test_an_unknown_op_is_an_error_with_those_meant(capsys: Capture) -> None:
    code, _, errors = check(capsys, "sofmax")
    assert code == 2
    assert "Did you mean softmax" in errors


def test_without_a_check_the_named_ops_are_listed(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "ops", "gelu", "topk", "--json")
    assert code == 0
    assert [facts["op"] for facts in json.loads(output)] == ["gelu", "topk"]
