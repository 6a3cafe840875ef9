"""The catalog's listing: it matches the ops, is outdated after a file changes, and is read without PyTorch."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reference_ops import catalog
from reference_ops.listing import PACKAGE, listed, read_listing, write_listing

WITHOUT_TORCH = """
import sys
from evolve.cli.app import main
code = main(["ops"])
sys.exit(code or "torch" in sys.modules)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_listing_equals_the_ops() -> None:
    ops = [listed(catalog.load(op.name), op.family, op.file) for op in catalog.listing()]
    assert list(catalog.listing()) == ops
    assert all((PACKAGE / op.file).is_file() for op in ops)


def test_a_written_listing_can_be_read_back() -> None:
    assert read_listing() is None
    write_listing(catalog.listing())
    assert read_listing() == catalog.listing()


def test_a_listing_is_outdated_after_a_file_changes(tmp_path: Path) -> None:
    package = tmp_path / "reference_ops"
    shutil.copytree(PACKAGE, package)
    write_listing(catalog.listing(), package)
    assert read_listing(package) == catalog.listing()
    with (package / "softmax" / "softmax.py").open("a") as file:
        file.write("\n# changed\n")
    assert read_listing(package) is None


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"name": "softmax"}]'])
def test_a_broken_cache_is_ignored(text: str, cache: Path) -> None:
    write_listing(catalog.listing())
    (file,) = (cache / "evolve" / "catalog").iterdir()
    file.write_text(text)
    assert not read_listing()


@pytest.mark.parametrize("cached", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_the_listing_of_ops_is_printed_without_importing_torch(cached: bool) -> None:
    if cached:
        write_listing(catalog.listing())
    root = PACKAGE.parent
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "softmax" in done.stdout
    assert read_listing() == catalog.listing()
