"""The catalog, which finds ops by name and by path, and explains why an op cannot be loaded."""

import importlib
import sys
from pathlib import Path

import pytest

from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.listing import PACKAGE, WITHOUT_OPS
from reference_ops.op import ops_of

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


def op_files() -> list[Path]:
    found = [path for path in PACKAGE.glob("*/*.py") if not path.stem.startswith("_")]
    return [path for path in found if path.parent.name not in WITHOUT_OPS]


def test_every_listed_name_loads_an_op_of_that_name() -> None:
    assert [catalog.load(name).name for name in catalog.names()] == catalog.names()


def test_no_two_files_and_no_two_ops_have_the_same_name() -> None:
    files = [path.stem for path in op_files()]
    assert len(set(files)) == len(files)
    defined = [op.name for file in files for op in ops_of(importlib.import_module(module_of(file)))]
    assert sorted(defined) == catalog.names()


def test_a_file_with_one_op_and_its_backward_is_named_after_it() -> None:
    for path in op_files():
        defined = [op.name for op in ops_of(importlib.import_module(module_of(path.stem)))]
        assert defined, path
        if len({name.partition("_backward")[0] for name in defined}) == 1:
            assert defined[0].partition("_backward")[0] == path.stem


def module_of(stem: str) -> str:
    path = next(path for path in op_files() if path.stem == stem)
    return f"reference_ops.{path.parent.name}.{stem}"


def test_an_op_and_its_backward_are_loaded_without_importing_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "reference_ops.reduction.topk", raising=False)
    catalog.load("softmax")
    assert "reference_ops.reduction.topk" not in sys.modules


def test_an_op_is_loaded_from_a_users_file(tmp_path: Path) -> None:
    assert catalog.load(written(tmp_path, USERS_OP)).name == "twice"


def test_the_locator_that_loaded_an_op_is_remembered(tmp_path: Path) -> None:
    path = written(tmp_path, USERS_OP)
    assert catalog.loaded_as(catalog.load(path)) == path
    assert catalog.loaded_as(catalog.load("softmax")) == "softmax"


def test_a_users_file_is_read_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    catalog.load(written(tmp_path, USERS_OP))
    assert catalog.load(written(tmp_path, USERS_OP.replace("1024", "4096"))).gpu[0].dims == (("n", 4096),)
    assert [file.name for file in tmp_path.iterdir()] == ["twice.py"]  # no bytecode is left beside it


def test_one_of_several_ops_in_a_users_file_is_selected_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, f"{USERS_OP}\nimport dataclasses\nops = (op, dataclasses.replace(op, name='again'))\n")
    assert catalog.load(f"{path}:again").name == "again"
    with pytest.raises(CatalogError, match=r"several ops. Say which: .*twice\.py:twice, .*twice\.py:again"):
        catalog.load(path)
    with pytest.raises(CatalogError, match=r"defines no op `thrice`\. It has: twice, again"):
        catalog.load(f"{path}:thrice")


def test_a_lasting_locator_does_not_depend_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, USERS_OP)
    monkeypatch.chdir(tmp_path)
    assert catalog.lasting("twice.py") == str(Path(path).resolve())
    assert catalog.lasting("twice.py:twice") == f"{Path(path).resolve()}:twice"
    assert catalog.lasting("softmax") == "softmax"


def test_the_error_for_an_unknown_name_suggests_similar_ones() -> None:
    with pytest.raises(CatalogError, match=r"no op `sofmax`.*mean softmax"):
        catalog.load("sofmax")


def test_the_error_for_a_name_without_similar_ones_names_the_command_that_lists_ops() -> None:
    with pytest.raises(CatalogError, match=r"no op `zzz`.*evolve ops"):
        catalog.load("zzz")


def test_the_error_names_a_missing_file() -> None:
    with pytest.raises(CatalogError, match=r"no file nowhere\.py"):
        catalog.load("nowhere.py")


def test_the_error_for_a_file_without_an_op_shows_how_to_define_one(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"defines no `op`.*must end with"):
        catalog.load(written(tmp_path, "x = 1\n"))


def test_the_error_for_an_op_of_another_type_names_the_type(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="its `op` is of type int"):
        catalog.load(written(tmp_path, "op = 1\n"))


def test_the_error_names_the_line_at_which_a_file_raises(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"twice\.py, line 2, cannot be imported: ZeroDivisionError"):
        catalog.load(written(tmp_path, "x = 1\ny = x / 0\n"))


def test_the_error_names_the_line_of_a_syntax_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"line 2, cannot be imported: SyntaxError"):
        catalog.load(written(tmp_path, "x = 1\ny = (\n"))


def test_the_error_says_what_is_inconsistent_in_an_op(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="gives no size for `m`"):
        catalog.load(written(tmp_path, USERS_OP.replace('tensors(out="n")', 'tensors(out="m")')))


def test_the_error_for_an_unknown_dtype_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"twice\.py.*no dtype `float33`; there are float64, float32"):
        catalog.load(written(tmp_path, USERS_OP.replace("float32", "float33")))


def test_a_name_that_is_not_an_identifier_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"`Twice, or so` cannot be the name of an op"):
        catalog.load(written(tmp_path, USERS_OP.replace('name="twice"', 'name="Twice, or so"')))


@pytest.mark.parametrize("name", ["softmax", "gelu_backward", "max_pool1d"])
def test_a_users_op_cannot_have_the_name_of_a_catalog_op(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        CatalogError, match=rf"twice\.py defines an op `{name}`, but the catalog already has one\. Give your op"
    ):
        catalog.load(written(tmp_path, USERS_OP.replace('name="twice"', f'name="{name}"')))


def test_the_error_names_the_line_at_which_a_file_exits(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"twice\.py, line 2, cannot be imported: it ends the program.*3"):
        catalog.load(written(tmp_path, "import sys\nsys.exit(3)\n"))
