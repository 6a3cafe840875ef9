"""Tests of import directions: `archive` and `reference_ops` import neither `evolve` nor each other."""

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from each import each

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("archive", "evolve", "reference_ops")
    for path in (ROOT / package).rglob("*.py")
)
OURS = {"archive", "evolve", "reference_ops"}
LONGEST_CHAIN = 9  # modules, each of which imports the next one at module level
# Libraries, with the only modules that may import them.
RESERVED = {
    "cupy": ("evolve/devices/cuda/",),
    "cupy_backends": ("evolve/devices/cuda/",),
    "rich": ("evolve/cli/", "evolve/report/"),
    "typer": ("evolve/cli/",),
    "jinja2": ("evolve/pages/",),
    "markupsafe": ("evolve/pages/",),
    "pygments": ("evolve/pages/",),
    "starlette": ("evolve/pages/server.py",),
    "uvicorn": ("evolve/pages/server.py",),
    "openai": ("evolve/proposers/llm/endpoint.py",),
    "sqlite3": ("archive/",),
    "ray": ("evolve/engines/cluster.py", "evolve/engines/ray_engine.py", "evolve/engines/ray_actors.py"),
}


each_module = each({str(path): path for path in MODULES})


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@cache
def imported(path: Path) -> set[str]:
    """Return every name that a file imports, including imports inside functions."""
    return names(ast.walk(tree(path)), path)


def names(nodes: Iterable[ast.AST], path: Path) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


@each_module
def test_imports_go_one_way(path: Path) -> None:
    packages = {name.split(".")[0] for name in imported(path)} & OURS
    allowed = OURS if path.parts[0] == "evolve" else {path.parts[0]}
    assert packages <= allowed


@each_module
def test_libraries_are_imported_only_in_their_places(path: Path) -> None:
    for library, places in RESERVED.items():
        if library in {name.split(".")[0] for name in imported(path)}:
            assert str(path).startswith(places), f"only {' and '.join(places)} may import {library}"


def test_proposers_do_not_import_devices_or_engines() -> None:
    unseen = ("evolve.devices", "evolve.engines", "evolve.evaluation")
    for path in MODULES:
        if path.parts[:2] == ("evolve", "proposers"):
            assert not any(name.startswith(unseen) for name in imported(path))


def test_evaluation_does_not_import_engines() -> None:
    for path in MODULES:
        if path.parts[:2] == ("evolve", "evaluation"):
            assert not any(name.startswith("evolve.engines") for name in imported(path)), path


def test_concrete_classes_are_chosen_in_one_place() -> None:
    concrete = {"LocalEngine", "RayEngine", "OfflineProposer", "LlmProposer"}
    for path in MODULES:
        chosen = concrete & {name.split(".")[-1] for name in imported(path)}
        assert not chosen or str(path) == "evolve/wiring.py", f"{path} chooses {chosen}"


def test_a_device_is_made_in_its_own_folder_only() -> None:
    concrete = {"CudaDevice": "cuda", "EmulatedDevice": "emulated"}
    for path in MODULES:
        for name in concrete.keys() & {name.split(".")[-1] for name in imported(path)}:
            assert path.parts[:3] == ("evolve", "devices", concrete[name]), f"{path} imports {name}"


def test_only_devices_compare_a_kind_of_device_with_a_name() -> None:
    """Differences between devices belong in their policies. Comparing the `type` of a torch.device is allowed."""
    for path in MODULES:
        if path.parts[0] != "evolve" or path.parts[1] == "devices":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Compare):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                named = any(kind in side for kind in ("'cuda'", "'emulated'") for side in sides)
                assert not named or any(side.endswith(".type") for side in sides), f"{path}: {ast.unparse(node)}"


def test_imports_have_no_cycles_and_no_chain_is_too_long() -> None:
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES}
    graph = {name: names(tree(path).body, path) & modules.keys() - {name} for name, path in modules.items()}
    length: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():  # a cycle raises a CycleError that names it
        length[name] = 1 + max((length[other] for other in graph[name]), default=0)
    longest = max(length, key=lambda name: length[name])
    assert length[longest] <= LONGEST_CHAIN, f"{longest} starts a chain of {length[longest]} imports"
