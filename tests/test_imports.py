"""Data flows one way, and so do imports: `evolve` -> `archive`, `reference_ops`; the leaves know nobody."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("archive", "evolve", "reference_ops")
    for path in (ROOT / package).rglob("*.py")
)
OURS = {"archive", "evolve", "reference_ops"}
# Who alone may import what.
RESERVED = {
    "cupy": ("evolve/devices/cuda/", "evolve/export/template/"),  # the template runs in the exported package
    "cupy_backends": ("evolve/devices/cuda/", "evolve/export/template/"),
    "rich": ("evolve/cli/", "evolve/report/"),
    "typer": ("evolve/cli/",),
    "openai": ("evolve/proposers/llm/endpoint.py", "evolve/proposers/llm/endpoint.py"),
    "sqlite3": ("archive/",),
}


def imported(path: Path) -> set[str]:
    """Every module a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_go_one_way(path: Path) -> None:
    packages = {name.split(".")[0] for name in imported(path)} & OURS
    allowed = OURS if path.parts[0] == "evolve" else {path.parts[0]}
    assert packages <= allowed


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_libraries_stay_where_they_belong(path: Path) -> None:
    for library, places in RESERVED.items():
        if library in {name.split(".")[0] for name in imported(path)}:
            assert str(path).startswith(places), f"only {' and '.join(places)} may import {library}"


def test_proposers_never_see_a_device() -> None:
    unseen = ("evolve.devices", "evolve.engines", "evolve.evaluation")
    for path in MODULES:
        if path.parts[:2] == ("evolve", "proposers"):
            assert not any(name.startswith(unseen) for name in imported(path))


def test_concrete_classes_are_chosen_in_one_place() -> None:
    concrete = {"LocalEngine", "OfflineProposer", "LlmProposer"}
    for path in MODULES:
        chosen = concrete & {name.split(".")[-1] for name in imported(path)}
        assert not chosen or str(path) == "evolve/wiring.py", f"{path} chooses {chosen}"


def test_a_device_is_made_in_its_own_folder_only() -> None:
    concrete = {"CudaDevice": "cuda", "EmulatedDevice": "emulated"}
    for path in MODULES:
        for name in concrete.keys() & {name.split(".")[-1] for name in imported(path)}:
            assert path.parts[:3] == ("evolve", "devices", concrete[name]), f"{path} imports {name}"


def test_only_devices_compare_a_kind_of_device_with_a_name() -> None:
    """What differs between devices is in their policies. The `type` of a torch.device is another matter."""
    for path in MODULES:
        if path.parts[0] != "evolve" or path.parts[1] == "devices":
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Compare):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                named = {"'cuda'", "'emulated'"}.intersection(sides)
                assert not named or any(side.endswith(".type") for side in sides), f"{path}: {ast.unparse(node)}"
