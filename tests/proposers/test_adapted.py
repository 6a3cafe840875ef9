"""The catalog's kernels, adapted to tasks that compute the same: they pass the evaluation as kernels of the task."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from shared_engine import run_here

from archive import library
from archive.kernel import Kernel, parse
from archive.records import Evaluation, Outcome
from evolve.devices import choose
from evolve.engines.engine import Engine
from evolve.evaluation.evaluate import evaluate
from evolve.evaluation.evaluator import Evaluator
from evolve.proposers.adapted import Equivalent, adapted, equivalents, kernels_for
from reference_ops import catalog
from reference_ops.op import Op

FUNCTIONS = """
import torch

def my_softmax(values):
    return torch.softmax(values, -1)

def my_norm(x, scale, shift):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), scale, shift, 1e-5)

def my_leaky(x):
    return torch.nn.functional.leaky_relu(x, 0.01)

def my_product(left, right):
    return left @ right
"""
INPUTS = {
    "my_softmax": "torch.randn(8, 4, 96)",
    "my_norm": "(torch.randn(12, 64), torch.randn(64), torch.randn(64))",
    "my_leaky": "torch.randn(12, 64)",
    "my_product": "(torch.randn(16, 24), torch.randn(24, 40))",
}


def task(folder: Path, name: str) -> Op:
    return catalog.load(locator(folder, name))


def locator(folder: Path, name: str) -> str:
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "inputs.py").write_text(f"import torch\nexamples = [lambda: {INPUTS[name]}]\n")
    return f"{folder}/functions.py:{name}@{folder}/inputs.py"


@pytest.mark.parametrize("name", INPUTS)
def test_the_plain_kernel_of_an_op_passes_as_a_kernel_of_the_task(tmp_path: Path, name: str) -> None:
    op = task(tmp_path, name)
    (verdict,) = verdicts(op, kernels_for(op, plain=True))
    assert verdict.passed, verdict.log


@pytest.mark.exhaustive
# NVRTC needs more than a minute for my_product
@pytest.mark.parametrize("name", sorted(INPUTS.keys() - {"my_product"}))
def test_every_adapted_kernel_passes_as_a_kernel_of_the_task(tmp_path: Path, name: str) -> None:
    op = task(tmp_path, name)
    found = verdicts(op, [kernel for kernel in kernels_for(op) if choose.supports("emulated", kernel)])
    assert {verdict.outcome for verdict in found} <= {Outcome.PASSED, Outcome.ILLEGAL, Outcome.UNSUPPORTED}
    assert any(verdict.passed for verdict in found), [verdict.log for verdict in found]


def verdicts(op: Op, kernels: Iterable[Kernel]) -> list[Evaluation]:
    evaluator = Evaluator(choose.make("emulated"), lambda _phase: None)
    return [evaluate(kernel, op, evaluator, shapes_seed=0, bars={}) for kernel in kernels]


DEFINITION = {
    "name": "norm_h64",
    "axes": {"tokens": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
    "inputs": {
        "states": {"shape": ["tokens", "hidden"], "dtype": "bfloat16"},
        "scale": {"shape": ["hidden"], "dtype": "bfloat16"},
    },
    "outputs": {"output": {"shape": ["tokens", "hidden"], "dtype": "bfloat16"}},
    "reference": (
        "import torch\n\ndef run(states, scale):\n    x = states.to(torch.float32)\n"
        "    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)\n"
        "    return (y * scale.to(torch.float32)).to(states.dtype)\n"
    ),
}


def test_tasks_of_robust_kbench_and_flashinfer_bench_start_from_kernels_too(tmp_path: Path) -> None:
    (tmp_path / "norm_h64.json").write_text(json.dumps(DEFINITION))
    random = {"states": {"type": "random"}, "scale": {"type": "random"}}
    workloads = [json.dumps({"axes": {"tokens": tokens}, "inputs": random}) for tokens in (7, 33)]
    (tmp_path / "norm_h64.jsonl").write_text("\n".join(workloads))
    for locator in (tmp_path / "norm_h64.json", Path(__file__).parents[1] / "samples" / "robust_kbench" / "rms"):
        (same,) = equivalents(catalog.load(str(locator)))
        assert (same.op.name, same.parameters) == ("rms_norm", {"eps": 1e-5})
        assert len(list(kernels_for(catalog.load(str(locator))))) == len(library.shipped("rms_norm"))


def test_a_kernel_for_other_dtypes_than_the_tasks_is_left_out(tmp_path: Path) -> None:
    op = task(tmp_path, "my_softmax")
    (same,) = equivalents(op)
    simple = library.shipped("softmax")[-1]
    half = parse(simple.text.replace("note = ", 'dtypes = ["bfloat16"]\nnote = ', 1))
    both = parse(simple.text.replace("note = ", 'dtypes = ["bfloat16", "float32"]\nnote = ', 1))
    assert adapted(half, op, same) is None
    found = adapted(both, op, same)
    assert found
    assert found.plan.dtypes == ("float32",)


def test_every_kernel_of_softmax_is_adapted_and_names_its_origin(tmp_path: Path) -> None:
    kernels = list(kernels_for(task(tmp_path, "my_softmax")))
    assert len(kernels) == len(library.shipped("softmax"))
    assert all(kernel.plan.note.endswith("(a kernel of softmax, adapted)") for kernel in kernels)
    assert all(kernel.op == "my_softmax" for kernel in kernels)


def test_an_output_that_the_task_lacks_becomes_workspace_and_a_parameter_a_constant(tmp_path: Path) -> None:
    of_the_catalog = library.shipped("layer_norm")
    for kernel, model in zip(kernels_for(task(tmp_path, "my_norm")), of_the_catalog, strict=True):
        own = [workspace.name for workspace in model.plan.workspace]
        assert [workspace.name for workspace in kernel.plan.workspace] == [*own, "mean", "rstd"]
        assert "constexpr float eps = 1e-05f;" in kernel.source
        assert not any("eps" in str(argument) for argument in kernel.plan.launches[0].args)


def test_a_kernel_whose_names_clash_with_the_tasks_is_left_out(tmp_path: Path) -> None:
    op = task(tmp_path, "my_softmax")
    (same,) = equivalents(op)
    swapped = Equivalent(same.op, {"x": "values", "out": "x"}, same.dims, same.parameters)
    simple = library.shipped("softmax")[-1]
    assert adapted(simple, op, same)
    assert adapted(simple, op, swapped) is None
    let = simple.text.replace("\n[[launch]]", '\n[let]\nvalues = "cols"\n\n[[launch]]', 1)
    assert adapted(parse(let), op, same) is None


def test_a_run_of_a_task_starts_from_the_catalogs_kernels(tmp_path: Path, emulated_engine: Engine) -> None:
    name = locator(tmp_path, "my_leaky")
    options = ("--device", "emulated", "--evals", "2", "--proposer", "offline")
    code, output = run_here(emulated_engine, tmp_path, "run", name, *options)
    assert code == 0
    assert "(a kernel of leaky_relu, adapted)" in run_here(emulated_engine, tmp_path, "top", "my_leaky", "--json")[1]
    assert "2 passed" in output
