"""An exported package on a machine without a GPU, where PyTorch computes all results."""

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gpu_records import exported, imported

NAMES = ("softmax", "rms_norm", "topk", "add_rms_norm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    exported(folder, *NAMES, package="primitives_on_cpu")
    return folder / "out"


@pytest.fixture(scope="module")
def package(folder: Path) -> ModuleType:
    return imported(folder, "primitives_on_cpu")


def test_a_single_output_is_returned_as_a_tensor(package: ModuleType) -> None:
    x = torch.randn(3, 5)
    torch.testing.assert_close(package.softmax(x, -1), torch.softmax(x, -1))


def test_a_function_has_the_arguments_of_pytorch(package: ModuleType) -> None:
    x, weight = torch.randn(2, 3, 5), torch.randn(5)
    expected = torch.nn.functional.rms_norm(x, (5,), weight, 0.5)
    torch.testing.assert_close(package.rms_norm(x, (5,), weight, eps=0.5), expected)


def test_an_op_that_pytorch_lacks_has_its_own_arguments_and_defaults(package: ModuleType) -> None:
    x, residual, weight = torch.randn(2, 3, 5), torch.randn(2, 3, 5), torch.randn(5)
    out, summed = package.add_rms_norm(x, residual, weight)
    torch.testing.assert_close(summed, x + residual)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(summed, (5,), weight, 1e-6))


def test_several_outputs_are_returned_as_a_tuple_in_order(package: ModuleType) -> None:
    values, indices = package.topk(torch.tensor([[1.0, 3.0, 2.0]]), k=2)
    assert (values.tolist(), indices.tolist()) == ([[3.0, 2.0]], [[1, 2]])


def test_gradients_are_computed(package: ModuleType) -> None:
    x = torch.randn(3, 5, requires_grad=True)
    package.softmax(x, -1)[:, 0].sum().backward()
    y = x.detach().clone().requires_grad_()
    torch.softmax(y, -1)[:, 0].sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_wrong_shapes_raise_the_error_of_pytorch(package: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="normalized_shape"):
        package.rms_norm(torch.randn(3, 5), (6,), torch.randn(6))


def test_a_topk_of_more_values_than_a_row_has_raises_the_error_of_pytorch(package: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        package.topk(torch.randn(3, 5), k=9)


def test_more_dims_than_the_op_declares_are_computed(package: ModuleType) -> None:
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(package.softmax(x, -1), torch.softmax(x, -1))


def test_torch_compile_traces_one_graph(package: ModuleType) -> None:
    x, weight = torch.randn(3, 5), torch.randn(5)
    compiled: Callable[..., torch.Tensor] = torch.compile(package.rms_norm, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, (5,), weight, 1e-6), package.rms_norm(x, (5,), weight, 1e-6))


def test_vmap_works(package: ModuleType) -> None:
    x = torch.randn(2, 3, 5)
    batched: Callable[..., torch.Tensor] = torch.vmap(partial(package.softmax, dim=-1))
    torch.testing.assert_close(batched(x), torch.softmax(x, -1))


def test_explain_says_why_pytorch_runs(package: ModuleType) -> None:
    explanation = package.explain("rms_norm", torch.randn(3, 5), (5,), weight=torch.randn(5), eps=1e-6)
    assert str(explanation) == "rms_norm: PyTorch, because the inputs are on the CPU"


def test_explain_names_the_ops_of_the_package(package: ModuleType) -> None:
    with pytest.raises(ValueError, match="there is no `sofmax` in this package, only add_rms_norm"):
        package.explain("sofmax")


def test_kernels_are_listed_with_their_times(package: ModuleType) -> None:
    (kernel,) = package.kernels()["softmax"]
    assert {measured.times.speedup for measured in kernel.measured} == {2.0}


def test_a_changed_kernel_file_is_an_error(tmp_path: Path) -> None:
    exported(tmp_path, "softmax", package="primitives_changed")
    package = imported(tmp_path / "out", "primitives_changed")
    (kernel,) = package.kernels()["softmax"]
    file = tmp_path / "out/primitives_changed" / kernel.file
    file.write_text(file.read_text() + "// one more line\n")
    with pytest.raises(RuntimeError, match="was changed after it was measured"):
        kernel.load(tmp_path / "out/primitives_changed")


ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("evolve", "archive", "reference_ops", "cupy"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import torch, primitives_on_cpu
x = torch.randn(3, 5)
assert torch.equal(primitives_on_cpu.softmax(x, -1), torch.softmax(x, -1))
assert "torch._dynamo" not in sys.modules  # the compiler, which takes longer to import than all of the package
primitives_on_cpu._runtime.launching  # loads all of the runtime
"""


def test_options_name_ops_of_the_package(package: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"an op `sofmax`, which this package does not have; .* softmax"):
        package.set_options(pin={"sofmax": "pytorch"})
    with pytest.raises(ValueError, match="an op `sofmax`"), package.options(allow=["sofmax"]):
        pass
    with package.options(allow=["softmax"], pin={"softmax": "pytorch"}):
        pass


def test_the_package_needs_only_torch(folder: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


LIGHT = """
import sys
import primitives_on_cpu as package
assert {"softmax", "patch", "nn"} <= set(dir(package))
assert not [name for name in sys.modules if name.startswith(("torch", "primitives_on_cpu."))]
try:
    package.nothing
except AttributeError as error:
    assert "has no attribute 'nothing'" in str(error)
"""


def test_the_import_of_a_package_loads_nothing_else(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_package_loads_only_the_ops_that_are_called(package: ModuleType) -> None:
    package.topk(torch.randn(3, 5), k=2)
    loading = importlib.import_module(f"{package.__name__}._package")
    made = loading._loading.Primitives(package.__name__, loading._HERE, loading._PRIMITIVES.digest)
    assert made["topk"].op.name == "topk"
    assert set(made.made) == {"topk"}


@pytest.mark.exhaustive
def test_a_package_tests_itself(folder: Path) -> None:
    command = [sys.executable, "-m", "primitives_on_cpu.selftest", "softmax", "add_rms_norm", "--calls", "2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 functions on the CPU: kernels cannot run" in done.stdout
    assert "left out, every kernel: softmax, add_rms_norm: the inputs are on the CPU" in done.stdout


def test_the_stubs_name_every_function(folder: Path, package: ModuleType) -> None:
    stub = (folder / "primitives_on_cpu/__init__.pyi").read_text()
    assert all(f" import {name} as {name}\n" in stub for name in (*package.__all__, "nn"))


def test_a_function_is_found_while_a_graph_is_traced(package: ModuleType) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return package.softmax(x, -1)  # type: ignore[no-any-return]

    compiled: Callable[..., torch.Tensor] = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(torch.ones(3, 5)), torch.full((3, 5), 0.2))


def test_a_changed_or_missing_manifest_is_an_error(tmp_path: Path) -> None:
    exported(tmp_path, "softmax", package="primitives_resigned")
    file = tmp_path / "out/primitives_resigned/manifest.json"
    file.write_text(file.read_text().replace('"deterministic": true', '"deterministic": false'))
    with pytest.raises(RuntimeError, match=r"manifest.json was changed after the export"):
        print(imported(tmp_path / "out", "primitives_resigned").softmax)
    file.unlink()
    with pytest.raises(RuntimeError, match=r"manifest.json is missing; install the package again"):
        imported(tmp_path / "out", "primitives_resigned").softmax(torch.ones(2, 2), -1)


def test_the_package_installs_with_all_its_files(folder: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*pip, str(tmp_path), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "primitives_on_cpu") == files_of(folder / "primitives_on_cpu")


def files_of(package: Path) -> set[str]:
    return {str(p.relative_to(package)) for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.softmax = torch.nn.RMSNorm(8, eps=1e-6), torch.nn.Softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.softmax(self.norm(x))  # type: ignore[no-any-return]


def test_a_model_is_patched_and_unpatched(package: ModuleType) -> None:
    model = Block()
    assert package.patch(model).replaced == ("norm", "softmax")
    assert type(model.norm) is importlib.import_module(f"{package.__name__}.nn").RMSNorm
    x = torch.randn(3, 8)
    torch.testing.assert_close(model(x), Block()(x))
    assert pickle.loads(pickle.dumps(model)).state_dict().keys() == model.state_dict().keys()
    assert package.unpatch(model) == ("norm", "softmax")


def test_calls_in_a_block_are_redirected_and_reported(package: ModuleType) -> None:
    with package.enabled() as report:
        Block()(torch.randn(3, 8))
    assert "softmax: 1 call by PyTorch, first because the inputs are on the CPU" in str(report)


def test_options_of_a_package_hold_for_a_block(package: ModuleType) -> None:
    with package.options(allow=()):
        assert package.explain("softmax", torch.randn(3, 5), -1).reason == "the inputs are on the CPU"
