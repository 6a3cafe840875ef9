"""Exported packages of functions and of tasks in foreign formats, on a machine without a GPU."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from commandline import evolve
from gpu_records import EMULATOR, archive_of, confirmed, everywhere, imported

from archive.kernel import Kernel, parse
from archive.runs import Run
from evolve.errors import UserError
from evolve.export.package import export
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Op

SAMPLES = Path(__file__).parents[1] / "samples"
BLOCK = SAMPLES / "kernelbench" / "KernelBench" / "level2" / "1_Linear_BatchNorm_Dropout.py"
RECURRENT = BLOCK.with_name("2_Recurrent_RandomState.py")
TANH = BLOCK.parents[1] / "level1" / "1_ScaledTanh.py"
RMS = SAMPLES / "robust_kbench" / "rms"
DEFINITION = SAMPLES / "flashinfer_bench" / "definitions" / "rms" / "scaled_h64.json"
PROGRAM = '''"""A program of mine."""
import os

import torch
import evolve

HOME = os.environ.get("HOME")
FACTOR = 2.0


def own_business():
    return HOME


def scaled(x):
    return x * FACTOR


{mark}def fused(x: torch.Tensor, weight: torch.Tensor, power: float = 1.0) -> torch.Tensor:
    """Scaled tanh."""
    return torch.tanh(scaled(x) * weight) ** power
'''
INPUTS = """
import torch

examples = [lambda: (torch.randn(6, 8), torch.randn(8), 3.0), lambda: (torch.randn(4, 16), torch.randn(16), 3.0)]
"""
MARK = (
    "@evolve.op(lambda: (torch.randn(6, 8), torch.randn(8), 3.0), lambda: (torch.randn(4, 16), torch.randn(16), 3.0))\n"
)


def simple(op: Op) -> Kernel:
    """Return a kernel with all tensors of an op as arguments. Without a GPU no package compiles it."""
    names = ", ".join(f'"{spec.name}"' for spec in (*op.inputs, *op.outputs))
    arguments = ", ".join(f"void* {spec.name}" for spec in (*op.inputs, *op.outputs))
    plan = f'op = "{op.name}"\n[[launch]]\nentry = "run"\ngrid = [1]\nblock = [32]\nargs = [{names}]'
    return parse(f'/*---\n{plan}\n---*/\nextern "C" __global__ void run({arguments}) {{}}\n')


def package_of(locator: str, folder: Path, name: str) -> ModuleType:
    """Export the op and import the package."""
    op = catalog.load(locator)
    kernel = simple(op)
    store = archive_of(folder, kernel, confirmed(kernel, everywhere(op, 50.0)))
    export(store, [(op, catalog.locate(locator))], folder / "out", name)
    return imported(folder / "out", name)


def program(folder: Path, text: str = PROGRAM.format(mark="")) -> str:
    (folder / "mymodule.py").write_text(text)
    (folder / "inputs.py").write_text(INPUTS)
    return f"{folder}/mymodule.py:fused@{folder}/inputs.py"


def test_a_function_is_exported_under_its_name_with_only_the_code_that_it_needs(tmp_path: Path) -> None:
    package = package_of(program(tmp_path), tmp_path, "package_of_a_function")
    x, weight = torch.randn(6, 8), torch.randn(8)
    torch.testing.assert_close(package.fused(x, weight), torch.tanh(x * 2 * weight))
    torch.testing.assert_close(package.fused(x, weight, power=3.0), torch.tanh(x * 2 * weight) ** 3)
    text = (tmp_path / "out/package_of_a_function/ops/fused.py").read_text()
    assert "FACTOR" in text
    assert "own_business" not in text
    assert "os" not in text.replace("import", "").split()


def test_a_function_in_a_package_accepts_shapes_that_no_example_has(tmp_path: Path) -> None:
    package = package_of(program(tmp_path), tmp_path, "package_of_other_shapes")
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(5)
    out: torch.Tensor = package.fused(x, weight)
    torch.autograd.backward([out.sum()])
    assert x.grad is not None


def test_torch_compile_traces_one_graph_in_a_function_of_a_package(tmp_path: Path) -> None:
    package = package_of(program(tmp_path), tmp_path, "package_to_compile")
    x, weight = torch.randn(6, 8), torch.randn(8)
    compiled: Callable[..., torch.Tensor] = torch.compile(package.fused, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, weight), package.fused(x, weight))


def test_a_decorated_function_is_exported_without_its_decorator(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text(PROGRAM.format(mark=MARK))
    package = package_of(f"{tmp_path}/mymodule.py", tmp_path, "package_of_a_mark")
    x, weight = torch.randn(6, 8), torch.randn(8)
    torch.testing.assert_close(package.fused(x, weight), torch.tanh(x * 2 * weight))
    assert "evolve.op" not in (tmp_path / "out/package_of_a_mark/ops/fused.py").read_text()


@pytest.mark.parametrize("task", [TANH, RECURRENT, RMS, DEFINITION], ids=lambda task: task.stem)
def test_an_exported_task_computes_the_same_as_the_task(tmp_path: Path, task: Path) -> None:
    if task == TANH:  # its tensors have 134 million elements
        task = tmp_path / TANH.name
        task.write_text(TANH.read_text().replace("4096 * 2", "8").replace("16384", "64"))
    op = catalog.load(str(task))
    package = package_of(str(task), tmp_path, f"package_of_{op.name}")
    workload = min((w for w in op.gpu), key=op.nbytes)
    inputs = inputs_at(op, workload, 0, "cpu")
    outputs = getattr(package, op.name)(**inputs, **dict(workload.parameters))
    wanted = op.call(inputs, workload)
    for own, other in zip(outputs if isinstance(outputs, tuple) else (outputs,), wanted, strict=True):
        torch.testing.assert_close(own, other)


def test_a_module_accepts_its_weights_and_refuses_those_of_other_shapes(tmp_path: Path) -> None:
    text = BLOCK.read_text().replace("batch = 1024", "batch = 8").replace("4096, 8192", "24, 32")
    (tmp_path / "1_Block.py").write_text(text)
    op = catalog.load(f"{tmp_path}/1_Block.py")
    package = package_of(f"{tmp_path}/1_Block.py", tmp_path, "package_of_weights")
    inputs = inputs_at(op, op.gpu[0], 0, "cpu")
    for own, other in zip(package.kb_1_block(**inputs), op.call(inputs, op.gpu[0]), strict=True):
        torch.testing.assert_close(own, other)
    with pytest.raises(ValueError, match=r"kb_1_block needs weights of the shapes \(32, 24\)"):
        package.kb_1_block(**{**inputs, "norm_bias": torch.zeros(31)})


def test_a_dim_that_only_an_output_has_is_found_by_a_call(tmp_path: Path) -> None:
    (tmp_path / "mymodule.py").write_text("def fused(x):\n    return x.unfold(1, 3, 2).sum(2)\n")
    (tmp_path / "inputs.py").write_text("import torch\nexamples = [[torch.randn(2, 9)], [torch.randn(3, 15)]]\n")
    package = package_of(f"{tmp_path}/mymodule.py:fused@{tmp_path}/inputs.py", tmp_path, "package_of_windows")
    assert package.fused(torch.randn(2, 9)).shape == (2, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("from beside import fused\n", "it imports `beside`; an exported op may depend only on torch"),
        (
            "import beside\ndef fused(x, weight, power):\n    return beside.fused(x, weight, power)\n",
            "imports `beside`",
        ),
        (
            "from beside import scaled\ndef fused(x, weight, power): return globals()['scaled'](x)\n",
            "KeyError: 'scaled'",
        ),
    ],
)
def test_a_function_that_needs_more_than_torch_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "beside.py").write_text("def scaled(x): return x\ndef fused(x, weight, power): return x * weight\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=reason) as refused:
        package_of(program(tmp_path, text), tmp_path, "package_of_nothing")
    assert len(str(refused.value).splitlines()) == 2


def test_the_gradients_of_a_robust_kbench_task_are_refused_with_a_hint() -> None:
    from evolve.export.portable import portable
    from evolve.export.runtime_copy import NotPortableError

    file = RMS / "func_backward.py"
    with pytest.raises(NotPortableError, match="export the forward instead"):
        portable(catalog.load(str(file)), file)


@pytest.mark.parametrize("words", [(), ("fused",)])
def test_a_function_named_without_its_file_is_left_out_with_the_command_that_exports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    locator = program(tmp_path)
    op = catalog.load(locator)
    kernel = simple(op)
    store = archive_of(tmp_path, kernel, confirmed(kernel, everywhere(op, 50.0)))
    store.append(Run("run", "fused", "cuda NVIDIA H200", "offline", 0, 1.0, words=(locator,)))
    monkeypatch.chdir(tmp_path)
    code, output, errors = evolve(capsys, "export", *words, "--archive", tmp_path / "archive.db")
    assert (code, output) == (2, "")
    assert "evolve export mymodule.py:fused@inputs.py" in " ".join(errors.split())
    code, output, errors = evolve(capsys, "export", locator, "--archive", tmp_path / "archive.db")
    assert (code, errors) == (0, "")
    assert "fused(x, weight, power=1.0)" in output


def test_a_function_is_exported_with_its_examples_as_it_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    op = catalog.load(program(tmp_path))
    kernel = simple(op)
    archive_of(tmp_path, kernel, confirmed(kernel, everywhere(op, 50.0)))
    monkeypatch.chdir(tmp_path)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "mymodule.py").write_text("a namesake that comes first on the path")
    monkeypatch.syspath_prepend(elsewhere)
    words = ("export", "mymodule:fused", "--example", "inputs.py", "--archive", tmp_path / "archive.db")
    code, _, errors = evolve(capsys, *words)
    assert code == 0, errors
    assert (tmp_path / "primitives/primitives/ops/fused.py").is_file()


def test_a_function_can_be_exported_before_a_gpu_has_run_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locator = program(tmp_path)
    op = catalog.load(locator)
    kernel = simple(op)
    archive_of(tmp_path, kernel, confirmed(kernel, everywhere(op, 50.0), EMULATOR))
    monkeypatch.chdir(tmp_path)
    words = ("export", locator, "--archive", tmp_path / "archive.db", "--name", "package_without_kernels")
    code, _, errors = evolve(capsys, *words)
    assert code == 2
    assert "none of its kernels was evaluated on a GPU" in errors
    assert "--pytorch-too exports a function that runs PyTorch" in " ".join(errors.split())
    code, output, _ = evolve(capsys, *words, "--pytorch-too")
    assert code == 0
    assert "fused(x, weight, power=1.0)\nno kernel has won on a GPU yet: PyTorch runs" in output
    package = imported(tmp_path / "package_without_kernels", "package_without_kernels")
    x, weight = torch.randn(6, 8), torch.randn(8)
    torch.testing.assert_close(package.fused(x, weight), torch.tanh(x * 2 * weight))
    assert "Has no kernel yet: everywhere, PyTorch runs." in package.fused.__doc__
    assert package.kernels() == {"fused": ()}
