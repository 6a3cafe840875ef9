"""The catalog finds ops by name and by path, and says what is wrong with what it cannot load."""

import sys
from pathlib import Path

import pytest

from reference_ops import catalog
from reference_ops.catalog import CatalogError

USERS_OP = """
import torch
from reference_ops.op import Op, tensors, workloads

def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

op = Op(
    name="twice",
    reference=twice,
    inputs=tensors(x="n"),
    outputs=tensors(out="n"),
    gpu=workloads("float32", {"n": 1024}),
    emulated=workloads("float32", {"n": 64}),
    flops=lambda dims: dims["n"],
)
"""


def written(folder: Path, text: str) -> str:
    path = folder / "twice.py"
    path.write_text(text)
    return str(path)


def test_every_op_is_listed_under_the_name_of_its_file() -> None:
    assert {name: catalog.load(name).name for name in catalog.names()} == {name: name for name in catalog.names()}


def test_no_two_families_have_an_op_of_the_same_name() -> None:
    files = [path.stem for path in catalog.PACKAGE.glob("*/*.py") if not path.stem.startswith("_")]
    assert sorted(files) == catalog.names()


def test_listing_imports_no_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "reference_ops.softmax.softmax", raising=False)
    catalog.names()
    assert "reference_ops.softmax.softmax" not in sys.modules


def test_an_op_is_loaded_from_a_users_file(tmp_path: Path) -> None:
    assert catalog.load(written(tmp_path, USERS_OP)).name == "twice"


def test_a_users_file_is_read_again_when_it_changed(tmp_path: Path) -> None:
    catalog.load(written(tmp_path, USERS_OP))
    assert catalog.load(written(tmp_path, USERS_OP.replace("1024", "4096"))).gpu[0].dims == (("n", 4096),)


def test_the_source_of_an_op_is_the_text_of_its_file() -> None:
    assert catalog.source(catalog.load("gelu")) == catalog.locate("gelu").read_text()


def test_the_source_of_a_users_op_is_found_by_its_path(tmp_path: Path) -> None:
    assert catalog.source(written(tmp_path, USERS_OP)) == USERS_OP


def test_an_unknown_name_gets_the_close_ones() -> None:
    with pytest.raises(CatalogError, match=r"no op `sofmax`.*mean softmax"):
        catalog.load("sofmax")


def test_a_name_like_no_other_gets_the_whole_list() -> None:
    with pytest.raises(CatalogError, match=r"no op `zzz`.*gelu.*softmax"):
        catalog.load("zzz")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(CatalogError, match=r"no file nowhere\.py"):
        catalog.load("nowhere.py")


def test_a_file_without_an_op_is_told_how_to_end(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"defines no `op`.*must end with"):
        catalog.load(written(tmp_path, "x = 1\n"))


def test_an_op_of_another_type_is_told_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="its `op` is of type int"):
        catalog.load(written(tmp_path, "op = 1\n"))


def test_a_file_that_raises_is_blamed_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"twice\.py, line 2, cannot be imported: ZeroDivisionError"):
        catalog.load(written(tmp_path, "x = 1\ny = x / 0\n"))


def test_a_file_with_a_syntax_error_is_blamed_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"line 2, cannot be imported: SyntaxError"):
        catalog.load(written(tmp_path, "x = 1\ny = (\n"))


def test_an_op_that_contradicts_itself_is_blamed_for_it(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="gives no size for `m`"):
        catalog.load(written(tmp_path, USERS_OP.replace('tensors(out="n")', 'tensors(out="m")')))
