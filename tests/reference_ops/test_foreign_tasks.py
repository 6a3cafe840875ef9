"""Ops made from tasks in foreign formats and from functions."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evolve.evaluation.op_check import blind_spots
from evolve.proposers.llm.questions import reference_source
from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.inputs import inputs_at
from reference_ops.op import Op
from reference_ops.shapes import held_out
from reference_ops.tasks.flashinfer_bench import stored
from reference_ops.tasks.source import identifier, named_dims

SAMPLES = Path(__file__).parents[1] / "samples"
LEVEL1, LEVEL2 = (SAMPLES / "kernelbench" / "KernelBench" / f"level{level}" for level in (1, 2))
TANH, MASKED = LEVEL1 / "1_ScaledTanh.py", LEVEL1 / "2_MaskedRowSum.py"
BLOCK = LEVEL2 / "1_Linear_BatchNorm_Dropout.py"
RECURRENT = LEVEL2 / "2_Recurrent_RandomState.py"
RMS = SAMPLES / "robust_kbench" / "rms"
SCALED = SAMPLES / "flashinfer_bench" / "definitions" / "rms" / "scaled_h64.json"
MARKED = SAMPLES / "marked.py"
EXAMPLES = SAMPLES / "product_inputs.py"
ALL = [
    TANH,
    MASKED,
    BLOCK,
    RECURRENT,
    RMS,
    RMS / "func_backward.py",
    SCALED,
    f"{MARKED}:weighted",
    f"{MARKED}:product@{EXAMPLES}",
]


def op(path: Path | str) -> Op:
    return catalog.load(str(path))


def dims(op: Op) -> dict[str, tuple[str, ...]]:
    return {spec.name: spec.dims for spec in (*op.inputs, *op.outputs)}


@pytest.mark.parametrize("task", ALL, ids=lambda task: Path(str(task)).stem)
def test_a_task_has_no_blind_spot(task: Path | str) -> None:
    loaded = op(task)
    assert loaded.emulated
    for workload in (*loaded.emulated, *loaded.awkward):
        assert blind_spots(loaded, workload, 0, "cpu", quick=True) == ()


@pytest.mark.parametrize("task", ALL, ids=lambda task: Path(str(task)).stem)
def test_a_lasting_locator_loads_the_same_task(task: Path | str) -> None:
    assert catalog.load(catalog.lasting(str(task))) is op(task)


def test_dims_have_the_names_of_the_tasks_sizes() -> None:
    assert dims(op(TANH)) == {"x": ("rows", "columns"), "out": ("rows", "columns")}
    assert dims(op(MASKED)) == {"x": ("batch", "shape_0"), "mask": ("batch", "shape_0"), "out": ("batch",)}


def test_a_problem_keeps_its_own_size_and_gets_smaller_ones_for_checks() -> None:
    tanh = op(TANH)
    assert [workload.key for workload in tanh.gpu] == ["rows=8192 columns=16384 scale=1.5 float32"]
    assert all(tanh.sizes(workload)["rows"] <= 256 for workload in (*tanh.emulated, *tanh.awkward))
    assert {dict(workload.dims)["columns"] % 2 for workload in tanh.awkward} >= {1}


def test_a_size_that_is_in_no_input_shape_does_not_change() -> None:
    masked = op(MASKED)
    for workload in masked.emulated:  # the task's `dim = 1` must not change
        inputs = inputs_at(masked, workload, 0, "cpu")
        assert torch.equal(masked.call(inputs, workload)[0], (inputs["x"] * inputs["mask"]).sum(1))


def test_weights_are_inputs_unless_no_output_depends_on_them() -> None:
    block = op(BLOCK)
    assert [spec.name for spec in block.inputs] == ["x", "linear_weight", "norm_weight", "norm_bias", "mask"]
    assert [spec.dtype for spec in block.outputs] == ["", "int64"]
    assert "linear.bias" in block.note
    assert "dropout (p=0.25)" in block.note


def test_a_module_in_training_mode_changes_neither_inputs_nor_itself() -> None:
    block = op(BLOCK)
    workload = block.emulated[0]
    inputs = inputs_at(block, workload, 3, "cpu")
    kept = {name: tensor.clone() for name, tensor in inputs.items()}
    first, second = block.call(inputs, workload), block.call(inputs, workload)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(inputs[name], tensor) for name, tensor in kept.items())
    x, weight, scale, bias, mask = inputs.values()
    normal = torch.nn.functional.batch_norm(x @ weight.T, None, None, scale, bias, training=True)
    torch.testing.assert_close(first[0], torch.relu(normal) @ mask)


def test_weights_are_drawn_as_the_module_initialises_them() -> None:
    block = op(BLOCK)
    workload = block.emulated[0]
    inputs = inputs_at(block, workload, 5, "cpu", "large")
    features = inputs["x"].shape[1]
    assert inputs["linear_weight"].std().item() == pytest.approx((3 * features) ** -0.5, rel=0.2)
    assert 0.8 <= inputs["norm_weight"].min() < inputs["norm_weight"].max() <= 1.2
    assert torch.equal(inputs["mask"], torch.ones_like(inputs["mask"]).tril())


def test_inputs_that_are_not_plain_random_numbers_are_drawn_by_the_task() -> None:
    masked = op(MASKED)
    for values in ("normal", *masked.values):
        assert set(inputs_at(masked, masked.emulated[0], 1, "cpu", values)["mask"].flatten().tolist()) == {False, True}
    once, again = (inputs_at(masked, masked.emulated[0], 7, "cpu") for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_loading_does_not_change_the_state_of_torchs_random_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    loaded = op(BLOCK)
    inputs_at(loaded, loaded.emulated[0], 0, "cpu")
    assert torch.equal(torch.rand(3), expected)


def test_tracing_a_task_at_any_sizes_does_not_import_the_compiler_of_pytorch() -> None:
    script = f"""
import sys
from dataclasses import replace
from reference_ops import catalog
from reference_ops.inputs import inputs_at
op = catalog.load({str(TANH)!r})
inputs_at(op, replace(op.gpu[0], dims=tuple((dim, 64) for dim, _ in op.gpu[0].dims)), 1, "cpu")
sys.exit("torch._dynamo" in sys.modules or "sympy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.exhaustive
def test_other_uses_of_the_compiler_while_a_task_is_traced_import_the_compiler() -> None:
    script = """
import sys
import torch
from reference_ops.tasks.light_imports import light_imports
with light_imports():
    import sympy
    import torch._dynamo
    assert torch._dynamo.config.recompile_limit
    assert sympy.Symbol("x") - sympy.Symbol("x") == 0
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    assert ShapeEnv()
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_task_may_mix_devices_and_arrays_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "1_Mixed.py"
    path.write_text("""
import numpy as np
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        scale = torch.from_numpy(np.full(x.shape[1], 2, dtype=np.float32)).to(x.device)
        return x * scale + y + torch.ones(x.shape[1], device=x.device)

rows, cols = 1024, 512

def get_inputs():
    return [torch.rand(rows, cols, device="cuda"), torch.from_numpy(np.ones((rows, cols), dtype=np.float32))]

def get_init_inputs():
    return []
""")
    mixed = op(path)
    assert [(spec.name, spec.dims) for spec in mixed.inputs] == [("x", ("rows", "cols")), ("y", ("rows", "cols"))]
    small = mixed.emulated[0]
    inputs = inputs_at(mixed, small, 0, "cpu")
    assert torch.equal(mixed.call(inputs, small)[0], inputs["x"] * 2 + inputs["y"] + 1)


def test_random_numbers_drawn_by_a_forward_become_inputs() -> None:
    recurrent = op(RECURRENT)
    workload = recurrent.emulated[0]
    assert [spec.name for spec in recurrent.inputs][:2] == ["x", "randn_0"]
    inputs = inputs_at(recurrent, workload, 0, "cpu")
    assert torch.equal(*(recurrent.call(inputs, workload)[0] for _ in range(2)))
    other = {**inputs, "randn_0": inputs["randn_0"] + 1}
    assert not torch.equal(recurrent.call(inputs, workload)[0], recurrent.call(other, workload)[0])


def test_a_task_with_functional_dropout_is_rejected() -> None:
    with pytest.raises(CatalogError, match=r"random numbers"):
        op(LEVEL1 / "4_AlwaysDropout.py")


def test_the_error_of_a_task_names_its_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(TANH.read_text().replace("torch.tanh(x)", "torch.tanch(x)"))
    with pytest.raises(CatalogError, match=r"broken.py, line 7, cannot be an op: AttributeError"):
        op(broken)


def test_the_source_of_a_reference_is_that_of_the_task() -> None:
    assert reference_source(op(TANH)) == TANH.read_text()


def test_a_changed_task_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "1_Grown.py"
    path.write_text(TANH.read_text())
    assert op(path).gpu[0].dims[0] == ("rows", 8192)
    path.write_text(TANH.read_text().replace("4096 * 2", "123456"))
    assert op(path).gpu[0].dims[0] == ("rows", 123456)


def test_a_robust_kbench_task_has_all_its_settings_as_workloads() -> None:
    forward, backward = op(RMS), op(RMS / "func_backward.py")
    assert [dict(workload.dims)["rows"] for workload in forward.gpu] == [8192, 64, 1024]
    assert dims(backward)["grad_x"] == ("rows", "features")
    assert [spec.name for spec in backward.inputs] == ["x", "grad_out", "weight"]
    assert [spec.name for spec in backward.outputs] == ["grad_x", "grad_weight"]


def test_a_robust_kbench_backward_agrees_with_autograd() -> None:
    backward = op(RMS / "func_backward.py")
    inputs = inputs_at(backward, backward.emulated[0], 0, "cpu")
    x, weight = (inputs[name].clone().requires_grad_() for name in ("x", "weight"))
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
    wanted = torch.autograd.grad(out, (x, weight), inputs["grad_out"])
    for own, other in zip(backward.call(inputs, backward.emulated[0]), wanted, strict=True):
        torch.testing.assert_close(own, other)


def test_a_flashinfer_definition_has_the_workloads_of_the_next_file() -> None:
    scaled = op(SCALED)
    assert [workload.key for workload in scaled.gpu] == [
        "rows=16384 hidden=64 scale=0.5 bfloat16", "rows=7 hidden=64 scale=0.5 bfloat16",
    ]  # fmt: skip
    assert [workload.key for workload in scaled.emulated] == ["rows=7 hidden=64 scale=0.5 bfloat16"]
    assert [(spec.name, spec.dtype) for spec in scaled.inputs] == [("x", ""), ("order", "int32")]


def test_tensors_are_read_from_safetensors_files(tmp_path: Path) -> None:
    numbers = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    header = json.dumps({"a": {"dtype": "I32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + numbers.numpy().tobytes())
    assert torch.equal(stored(tmp_path / "a.safetensors", "a"), numbers)


def test_dims_of_a_function_are_inferred_from_its_examples() -> None:
    assert dims(op(f"{MARKED}:weighted")) == {"x": ("x_0", "x_1"), "weight": ("x_1",), "out": ("x_0", "x_1")}
    product = op(f"{MARKED}:product@{EXAMPLES}")
    assert dims(product) == {"a": ("a_0", "a_1"), "b": ("a_1", "b_1"), "out": ("a_0", "b_1")}
    assert product.note == (
        "The function product of marked.py. Sizes that vary: a_0, a_1, b_1. Those given as numbers are fixed."
    )


def test_a_single_decorated_function_needs_no_name() -> None:
    assert op(MARKED) is not None
    assert op(MARKED).name == "weighted"


def test_a_module_is_found_in_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLES)
    assert catalog.lasting("marked:weighted") == f"{MARKED}:weighted"
    assert catalog.lasting(f"marked:product@{EXAMPLES.name}") == f"{MARKED}:product@{EXAMPLES}"


def test_the_error_for_a_function_without_examples_says_how_to_give_them() -> None:
    with pytest.raises(CatalogError, match="--example"):
        op(f"{MARKED}:product")


def test_a_function_cannot_have_the_name_of_a_catalog_op(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MARKED.read_text().replace("weighted", "gelu"))
    with pytest.raises(CatalogError, match=r"program\.py defines an op `gelu`, but the catalog already has one"):
        op(tmp_path / "program.py")


def test_the_error_names_the_line_at_which_a_task_exits(tmp_path: Path) -> None:
    (tmp_path / "1_Ends.py").write_text(f"{TANH.read_text()}\nraise SystemExit\n")
    with pytest.raises(CatalogError, match=r"1_Ends\.py, line \d+, cannot be an op: it ends the program"):
        op(tmp_path / "1_Ends.py")


def test_the_error_names_a_missing_module() -> None:
    with pytest.raises(CatalogError, match=r"no module `mymodul`.*Give module:function"):
        op("mymodul:fused@inputs.py")


def test_the_error_for_a_decorator_without_examples_shows_how_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import evolve\n\n@evolve.op\ndef f(x):\n    return x\n")
    with pytest.raises(CatalogError, match=r"program\.py, line 3, .*without arguments, got `f`.*@evolve\.op\(lambda"):
        op(tmp_path / "program.py")


def test_dims_that_never_vary_are_constants() -> None:
    named, values = named_dims([{"x": (4, 8), "y": (8,)}, {"x": (4, 16), "y": (16,)}], [{"N": 8}, {"N": 16}], set())
    assert named == {"x": ("4", "n"), "y": ("n",)}
    assert values == [{"n": 8}, {"n": 16}]


def test_names_are_valid_and_unique() -> None:
    taken: set[str] = set()
    assert [identifier(text, taken) for text in ("gn.weight", "gn_weight", "size", "3d", "int")] == [
        "gn_weight", "gn_weight_2", "size_2", "_3d", "int_2",
    ]  # fmt: skip


def test_shapes_that_no_list_names_are_drawn_for_a_problem_without_weights() -> None:
    found = catalog.load(str(TANH))
    drawn = held_out(found, lambda _: True, random.Random(1), 5, 2**20)
    assert len({one.dims for one in drawn} - {one.dims for one in found.listed}) == 5
    for workload in drawn:
        (own,) = found.call(inputs_at(found, workload, 0, "cpu"), workload)
        assert tuple(own.shape) == found.shape(found.outputs[0], workload)
