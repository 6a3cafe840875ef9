"""A level of KernelBench, from a checkout to fast_p."""

import json
from pathlib import Path

import pytest
from command import run
from commandline import evolve

from evolve.report.kernelbench import TaskResult, fast, published

SAMPLES = Path(__file__).parents[1] / "samples"
CHECKOUT = SAMPLES / "kernelbench"
KERNEL = """\
/*---
op = "kb1_1_scaledtanh"
note = "one element a thread"
[knobs]
THREADS = [128, 64]
[[launch]]
entry = "scaled"
grid = ["ceil_div(rows * columns, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "rows * columns", "scale"]
---*/
extern "C" __global__ void scaled(const x_t* x, out_t* out, int n, float scale) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) out[i] = tanhf(x[i]) * scale;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernelbench")
    (folder / "scaled.cu").write_text(KERNEL)
    problem = CHECKOUT / "KernelBench" / "level1" / "1_ScaledTanh.py"
    code, output = run(folder, "tell", "scaled.cu", str(problem))
    assert code == 0, output
    return folder


def test_a_level_runs_under_one_budget_and_ends_with_its_figure_of_merit(folder: Path) -> None:
    words = ("--level", "1", "--evals", "4", "--device", "emulated", "--proposer", "offline", "--json")
    code, output = run(folder, "kernelbench", str(CHECKOUT), *words)
    assert code == 0, output
    assert "no statement about a GPU" in output
    result = json.loads(output[output.index("\n{\n") :])
    tasks = {task["task"]: task for task in result["tasks"]}
    assert tasks["1_ScaledTanh"]["correct"]
    assert tasks["1_ScaledTanh"]["published_eager_us"] == 250
    assert not tasks["2_MaskedRowSum"]["correct"]
    assert "passes when it is spoiled" in tasks["3_AlwaysZero"]["said"]
    assert "random numbers" in tasks["4_AlwaysDropout"]["said"]
    assert result["fast_0"] == {"eager": 0.25, "compile": 0.25}


def test_a_list_says_what_loads_and_why_others_do_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, output, _ = evolve(capsys, "kernelbench", CHECKOUT, "--list", "--device", "emulated")
    assert code == 0
    assert "3 of 4 problems load, 1 of them blind" in output
    assert "its forward draws random numbers" in output
    assert "1.07" in output  # GB
    assert "rows=8192 columns=16384 scale=1.5 float32" in output
    assert "sizes as on a GPU" in output


def test_a_level_without_a_correct_kernel_is_exit_code_1(tmp_path: Path) -> None:
    words = ("--only", "1", "--evals", "1", "--device", "emulated", "--proposer", "offline")
    code, output = run(tmp_path, "kernelbench", str(CHECKOUT), *words)
    assert code == 1, output
    assert "no correct kernel" in output


def test_only_some_problems_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--list", "--device", "emulated", "--json", "--only")
    code, output, _ = evolve(capsys, "kernelbench", CHECKOUT, *words, "2")
    assert code == 0
    assert [(one["problem"], one["outputs"]) for one in json.loads(output)] == [("2_MaskedRowSum", {"out": [2048]})]
    code, _, errors = evolve(capsys, "kernelbench", CHECKOUT, *words, "2,77")
    assert code == 2
    assert "level 1 has no problem 77" in errors


def test_a_folder_without_problems_is_wrong_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, errors = evolve(capsys, "kernelbench", tmp_path)
    assert code == 2
    assert "no problems of level 1" in errors


def test_a_problem_that_is_too_large_to_emulate_needs_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x)

def get_inputs():
    return [torch.rand(4096, 4096)]

def get_init_inputs():
    return []
""")
    code, output = run(tmp_path, "run", "large.py", "--device", "emulated", "--proposer", "offline")
    assert code != 0
    assert "nothing of kb_large is small enough to emulate" in output
    assert "Traceback" not in output


def test_a_function_of_the_users_runs_with_example_inputs(tmp_path: Path) -> None:
    words = ("--evals", "1", "--device", "emulated", "--proposer", "offline")
    function, inputs = SAMPLES / "marked.py", SAMPLES / "product_inputs.py"
    (tmp_path / "product.cu").write_text(PRODUCT)
    assert run(tmp_path, "tell", "product.cu", str(function))[0] != 0  # which function, is the question
    code, output = run(tmp_path, "run", f"{function}:product", "--example", str(inputs), *words)
    assert code == 1, output
    assert "no kernels for product" in output


PRODUCT = KERNEL.replace("kb1_1_scaledtanh", "product")


def measured(ours: float, eager: float, compiled: float | None) -> dict[str, float | None]:
    return {"median_us": ours, "eager_us": eager, "compile_us": compiled}


def test_fast_p_counts_tasks_that_are_right_and_more_than_p_times_as_fast() -> None:
    tasks = [
        TaskResult("fast", "a", measured=(measured(10, 25, 15),)),
        TaskResult("even", "b", measured=(measured(10, 10, None),)),
        TaskResult("wrong", "c"),
        TaskResult("blind", "d", "blind", blind=True, measured=(measured(1, 100, 100),)),
    ]
    assert [fast(tasks, "eager_us", p) for p in (0, 1, 2)] == [0.5, 0.25, 0.25]
    assert [fast(tasks, "compile_us", p) for p in (0, 1, 2)] == [0.5, 0.25, 0.0]


def test_published_times_are_those_of_a_gpu_like_this_one() -> None:
    theirs = published(CHECKOUT, 1, "cuda NVIDIA H200", lambda path: json.loads(path.read_text()))
    assert theirs.hardware == "H100_somewhere"
    assert theirs.eager_us == {"1_ScaledTanh.py": 250.0}
    assert published(SAMPLES, 1, "cuda NVIDIA H200", lambda path: json.loads(path.read_text())).hardware == ""
