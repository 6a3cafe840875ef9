"""Archives are untrusted: text from them must never become code in a package."""

import ast
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from gpu_records import H200, archive_of, confirmed, everywhere, simple

from archive.characters import HIDDEN
from archive.kernel import parse
from archive.records import Check, Confirmed, Sanitized
from evolve.errors import UserError
from evolve.export.package import export
from reference_ops import catalog
from reference_ops.op import Op

SOFTMAX, RMS_NORM = catalog.load("softmax"), catalog.load("rms_norm")
HARMLESS = "NVIDIA H200"
HOSTILE = [
    'H200"""\n    import os; os.system("true")\n    """',
    "H200'''\n__import__('os')",
    'H200\\"""\\',
    "H200 {name} {0} %s",
    'H200" | x |\n\n| y [here](http://example.com) <b> `code` \x1b[2J \u202e \x00',
    '"\n[project.scripts]\nevil = "os:system"\n',
]


def exported(folder: Path, said: str, op: Op = SOFTMAX) -> Path:
    """Export an archive in which every free text is this one, and return the package."""
    kernel = simple(op.name)
    kernel = kernel.with_plan(replace(kernel.plan, note=HIDDEN.sub("", said)))
    verdict = confirmed(kernel, everywhere(op, 50.0), replace(H200, name=said, driver=said, torch=said))
    duels = verdict.confirmed.duels if verdict.confirmed else ()
    verdict = replace(
        verdict,
        log=said,
        skipped=(said,),
        checks=(Check(said, said, said, 1.5e-3, 1e-3, 0.25),),
        confirmed=Confirmed(
            (said,),
            tuple(replace(duel, baseline=said) for duel in duels),
            (Sanitized(said, 0, said), Sanitized(f"{said}2", None, said)),
        ),
    )
    folder.mkdir()
    export(archive_of(folder, kernel, verdict), [(op, catalog.locate(op.name))], folder / "out")
    return folder / "out"


def trees(folder: Path) -> dict[str, str]:
    """Return the syntax tree of every module of a package, with all strings emptied."""
    return {str(path.relative_to(folder)): tree(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")}


@cache  # most modules are the same in all packages
def tree(module: str) -> str:
    found = ast.parse(module)
    for node in ast.walk(found):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(found)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that exports an archive with this text, once for all tests."""

    @cache
    def made(said: str, op: str = SOFTMAX.name) -> Path:
        return exported(tmp_path_factory.mktemp("package") / "folder", said, catalog.load(op))

    return made


@pytest.mark.parametrize("op", [SOFTMAX.name, pytest.param(RMS_NORM.name, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("said", HOSTILE)
def test_no_text_from_an_archive_becomes_code(package: Callable[..., Path], said: str, op: str) -> None:
    assert trees(package(said, op)) == trees(package(HARMLESS, op))


@pytest.mark.parametrize("said", HOSTILE)
def test_no_text_from_an_archive_becomes_a_setting(package: Callable[..., Path], said: str) -> None:
    first, second = package(HARMLESS), package(said)
    assert (first / "pyproject.toml").read_text() == (second / "pyproject.toml").read_text()
    assert tomllib.loads((second / "pyproject.toml").read_text())["project"]["name"] == "primitives"


@pytest.mark.parametrize("said", HOSTILE)
def test_no_text_from_an_archive_becomes_markup(package: Callable[..., Path], said: str) -> None:
    first, second = (package(word) / "README.md" for word in (HARMLESS, said))
    plain, shown = first.read_text(encoding="utf-8"), second.read_text(encoding="utf-8")
    assert shown.count("\n") == plain.count("\n")
    assert shown.replace("\\|", "").count("|") == plain.count("|")
    assert not HIDDEN.search(shown)
    assert "[here](" not in shown
    assert "<b>" not in shown.replace("\\<b", "")


def test_the_manifest_keeps_texts_unchanged(package: Callable[..., Path]) -> None:
    written = json.loads((package(HOSTILE[0]) / "primitives/manifest.json").read_text())
    assert written["ops"]["softmax"]["kernels"][0]["measured"][0]["device"] == HOSTILE[0]


USER_OP = """\
import torch
from reference_ops.op import Op, tensors, workloads

def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by

op = Op(
    name="scaled", reference=scaled, inputs=tensors(x="n"), outputs=tensors(out="n"), note={note!r},
    gpu=workloads("float32", {{"n": 64}}, by=2.0), emulated=workloads("float32", {{"n": 64}}, by=2.0),
    flops=lambda dims: dims["n"],
)
"""
SCALED = """\
/*---
op = "scaled"
[[launch]]
entry = "scaled"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["x", "out", "by", "n"]
---*/
extern "C" __global__ void scaled(const x_t* x, out_t* out, float by, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] * by;
}
"""


def own_op(folder: Path, name: str, note: str) -> Path:
    """Export an op from a user's file and return the path of the module with its functions."""
    folder.mkdir()
    path = folder / name
    path.write_text(USER_OP.format(note=note))
    op, kernel = catalog.load(str(path)), parse(SCALED)
    export(archive_of(folder, kernel, confirmed(kernel, everywhere(op, 50.0))), [(op, path)], folder / "out")
    return folder / "out/primitives/_package.py"


@pytest.fixture(scope="module")
def harmless_note(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trees(own_op(tmp_path_factory.mktemp("note") / "a", "scaled.py", "harmless").parent)["_package.py"]


@pytest.mark.parametrize("note", HOSTILE)
def test_the_note_of_an_op_stays_in_its_docstring(tmp_path: Path, harmless_note: str, note: str) -> None:
    assert trees(own_op(tmp_path / "a", "scaled.py", note).parent)["_package.py"] == harmless_note


def test_a_file_that_cannot_be_a_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"my-op\.py cannot be a module of the package: rename it"):
        own_op(tmp_path / "a", "my-op.py", "")
