"""`evolve kernelbench` on a small checkout, from loading the problems to fast_p."""

import json
from pathlib import Path

import pytest
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


Capture = pytest.CaptureFixture[str]
OFFLINE = ("--device", "emulated", "--proposer", "offline")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_level_runs_under_one_budget_and_ends_with_fast_p(capsys: Capture) -> None:
    Path("scaled.cu").write_text(KERNEL)
    problem = CHECKOUT / "KernelBench" / "level1" / "1_ScaledTanh.py"
    assert evolve(capsys, "tell", "scaled.cu", problem)[0] == 0
    words = ("--level", "1", "--evals", "2", "--json", *OFFLINE)
    code, output, errors = evolve(capsys, "kernelbench", CHECKOUT, *words)
    assert code == 0, errors
    assert "speed can be measured only on a GPU" in errors
    result = json.loads(output)
    tasks = {task["task"]: task for task in result["tasks"]}
    assert tasks["1_ScaledTanh"]["correct"]
    assert tasks["1_ScaledTanh"]["published_eager_us"] == 250
    assert not tasks["2_MaskedRowSum"]["correct"]
    assert "passes when it is corrupted" in tasks["3_AlwaysZero"]["said"]
    assert "random numbers" in tasks["4_AlwaysDropout"]["said"]
    assert result["fast_0"] == {"eager": 0.25, "compile": 0.25}


def test_a_list_shows_which_problems_load_and_why_others_do_not(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, output, _ = evolve(capsys, "kernelbench", CHECKOUT, "--list", "--device", "emulated")
    assert code == 0
    assert "3 of 4 problems load, 1 of them blind" in output
    assert "its forward draws random numbers" in output
    assert "1.07" in output  # GB of tensors
    assert "rows=8192 columns=16384 scale=1.5 float32" in output
    assert "sizes are those for a GPU" in output


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_level_without_a_correct_kernel_exits_with_code_1(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, output, _ = evolve(capsys, "kernelbench", CHECKOUT, "--only", "1", "--evals", "1", *OFFLINE)
    assert code == 1
    assert "no correct kernel" in output


def test_problems_can_be_chosen_by_number(capsys: Capture) -> None:
    words = ("--list", "--device", "emulated", "--json", "--only")
    code, output, _ = evolve(capsys, "kernelbench", CHECKOUT, *words, "2")
    assert code == 0
    assert [(one["problem"], one["outputs"]) for one in json.loads(output)] == [("2_MaskedRowSum", {"out": [2048]})]
    code, _, errors = evolve(capsys, "kernelbench", CHECKOUT, *words, "2,77")
    assert code == 2
    assert "level 1 has no problem 77" in errors


def test_a_folder_without_problems_is_a_usage_error(capsys: Capture, tmp_path: Path) -> None:
    code, _, errors = evolve(capsys, "kernelbench", tmp_path)
    assert code == 2
    assert "no problems of level 1" in errors


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_problem_that_is_too_large_to_emulate_needs_a_gpu(capsys: Capture) -> None:
    Path("large.py").write_text("""
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
    code, _, errors = evolve(capsys, "run", "large.py", *OFFLINE)
    assert code == 2
    assert "no workload of kb_large is small enough for the emulated device" in errors
    assert "at most 20,000 outputs, 300,000 elements in all" in " ".join(errors.split())


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_function_runs_with_example_inputs_from_a_file(capsys: Capture) -> None:
    function, inputs = SAMPLES / "marked.py", SAMPLES / "product_inputs.py"
    Path("product.cu").write_text(PRODUCT)
    # the name is needed because the file has two functions
    assert evolve(capsys, "tell", "product.cu", function)[0] != 0
    code, output, _ = evolve(
        capsys, "run", f"{function}:product", "--example", inputs, "--evals", "1", "--no-seeds", *OFFLINE
    )
    assert code == 1
    assert "no kernels for product" in output
    assert "product: a[a_0 a_1], b[a_1 b_1] -> out[a_0 b_1]; a_0, a_1 and b_1 may vary; float32" in output


PRODUCT = KERNEL.replace("kb1_1_scaledtanh", "product")


def measured(ours: float, eager: float, compiled: float | None) -> dict[str, float | None]:
    return {"median_us": ours, "eager_us": eager, "compile_us": compiled}


def test_fast_p_counts_tasks_that_are_correct_and_more_than_p_times_as_fast() -> None:
    tasks = [
        TaskResult("fast", "a", measured=(measured(10, 25, 15),)),
        TaskResult("even", "b", measured=(measured(10, 10, None),)),
        TaskResult("wrong", "c"),
        TaskResult("blind", "d", "blind", blind=True, measured=(measured(1, 100, 100),)),
    ]
    assert [fast(tasks, "eager_us", p) for p in (0, 1, 2)] == [0.5, 0.25, 0.25]
    assert [fast(tasks, "compile_us", p) for p in (0, 1, 2)] == [0.5, 0.25, 0.0]


def test_published_times_are_those_of_the_same_gpu_model() -> None:
    theirs = published(CHECKOUT, 1, "cuda NVIDIA H200", lambda path: json.loads(path.read_text()))
    assert theirs.hardware == "H100_somewhere"
    assert theirs.eager_us == {"1_ScaledTanh.py": 250.0}
    assert published(SAMPLES, 1, "cuda NVIDIA H200", lambda path: json.loads(path.read_text())).hardware == ""
