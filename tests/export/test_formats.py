"""Formats of a package: the wheel installs by its files, and the layout of Hugging Face's kernels loads by its path."""

import hashlib
import importlib.util
import inspect
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gpu_records import archive_of, confirmed, everywhere, ops, simple

from evolve.errors import UserError
from evolve.export.package import Packing, export
from reference_ops import catalog

NAMES = ("softmax", "rms_norm")


def exported(folder: Path, form: str, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    records: list[Any] = []
    for op in NAMES:
        records += [simple(op), confirmed(simple(op), everywhere(catalog.load(op), 50.0))]
    export(archive_of(folder, *records), ops(*NAMES), folder / "out", name, packing=Packing(form))
    return folder / "out"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("hub") / "a", "hf", "hub_package") / "build/torch-universal"


@pytest.fixture(scope="module")
def loaded(hub: Path) -> ModuleType:
    return by_path(hub / "__init__.py", "loaded_by_path_0123")


def by_path(file: Path, name: str) -> ModuleType:
    """Load a package as `kernels` does: by its path, under a unique name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_installs_the_files_of_a_folder(tmp_path: Path) -> None:
    whole = exported(tmp_path / "a", "folder", "packed") / "packed"
    (wheel,) = exported(tmp_path / "b", "wheel", "packed").iterdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    done = subprocess.run([*pip, str(tmp_path / "c"), str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for file in (file for file in whole.rglob("*") if file.is_file()):
        assert (tmp_path / "c/packed" / file.relative_to(whole)).read_bytes() == file.read_bytes()


def test_a_wheel_is_the_same_for_the_same_champions(tmp_path: Path) -> None:
    first, second = (next(exported(tmp_path / at, "wheel", "packed").iterdir()) for at in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    assert "packed-0.1.0.dist-info/METADATA" in zipfile.ZipFile(first).namelist()


def test_the_layout_for_the_hub_loads_under_any_name(loaded: ModuleType) -> None:
    x = torch.randn(3, 5)
    torch.testing.assert_close(loaded.softmax(x, -1), torch.softmax(x, -1))


def test_two_copies_of_it_load_in_one_process(hub: Path, loaded: ModuleType) -> None:
    other = by_path(hub / "__init__.py", "loaded_by_path_4567")
    assert other.softmax is not loaded.softmax
    for package in (loaded, other):
        compiled: Any = torch.compile(package.softmax, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(torch.ones(2, 4), -1), torch.full((2, 4), 0.25))


def test_older_versions_find_a_folder_of_its_name(hub: Path) -> None:
    older = by_path(hub / "hub_package/__init__.py", "older_0123")
    torch.testing.assert_close(older.softmax(torch.ones(2, 4), -1), torch.full((2, 4), 0.25))


def test_the_digests_are_those_of_the_files(hub: Path) -> None:
    digests = json.loads((hub / "digests.json").read_text())
    assert {path: hashlib.sha256((hub / path).read_bytes()).hexdigest() for path in digests} == digests
    assert {"manifest.json", "layers.py", "_package.py"} <= set(digests)
    assert json.loads((hub / "metadata.json").read_text())["python-depends"] == []


def test_layers_for_the_hub_define_only_a_forward(loaded: ModuleType) -> None:
    for name in ("Softmax", "RMSNorm"):
        layer, original = getattr(loaded.layers, name), getattr(torch.nn, name)
        assert layer.__bases__ == (torch.nn.Module,)
        assert layer.__init__ is torch.nn.Module.__init__
        assert layer.can_torch_compile
        assert layer.has_backward
        ours, theirs = (list(inspect.signature(one.forward).parameters) for one in (layer, original))
        assert ours == theirs
        module = original(5) if name == "RMSNorm" else original(-1)
        x = torch.randn(3, 5)
        torch.testing.assert_close(layer.forward(module, x), module(x))


@pytest.mark.parametrize("form", ["folder", "wheel", "hf"])
def test_an_export_replaces_only_an_earlier_one(tmp_path: Path, form: str) -> None:
    folder = exported(tmp_path / "a", form, "packed")
    exported(tmp_path / "a", form, "packed")
    other = tmp_path / "b"
    (other / "out").mkdir(parents=True)
    (other / "out" / "mine.txt").write_text("")
    with pytest.raises(UserError, match="is not empty and holds no earlier export"):
        exported(other, form, "packed")
    assert any(folder.iterdir())
