"""Damaged task files of every format: each is either loaded as an op or refused with a CatalogError."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.op import Op

SAMPLES = Path(__file__).parents[1] / "samples"
KERNELBENCH = SAMPLES / "kernelbench" / "KernelBench" / "level1" / "2_MaskedRowSum.py"
ROBUST = SAMPLES / "robust_kbench" / "rms"
FLASHINFER = SAMPLES / "flashinfer_bench"
MARKED = SAMPLES / "marked.py"
FEWER = settings(max_examples=settings().max_examples // 5)  # loading a task takes a tenth of a second
# No digits: loading a task runs its code, and they could make tensors that do not fit into memory.
PIECES = ["", "\n", "    ", "(", ")", "[", "]", ":", ",", "#", '"', "return", "self", "None", "x", "torch", "rows",
          "def ", "class ", "raise ", "yield ", "lambda", "*", "-", "=", "\0", "é", "\ud800"]  # fmt: skip
json_values: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 3, 1.5, "", "x", "var", "const", "float32", "int99", [], {}, [[]]]
)


def loaded(locator: Path | str) -> Op | None:
    try:
        return catalog.load(str(locator))
    except CatalogError as error:
        assert str(error).encode(errors="surrogateescape")  # noqa: PT017 - some damaged files can be loaded
        return None


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """Draw the text with a few pieces inserted, lines removed, repeated or swapped, or its end cut off."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 3))):
        at, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(["put", "drop", "repeat", "swap", "cut"]))
        if change == "put":
            column = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:column] + draw(st.sampled_from(PIECES)) + lines[at][column:]
        elif change == "drop" and len(lines) > 1:
            del lines[at]
        elif change == "repeat":
            lines.insert(other % (len(lines) + 1), lines[at])
        elif change == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif change == "cut":
            lines = lines[: at + 1]
    return "\n".join(lines)


def damaged_json(draw: st.DrawFn, value: Any) -> Any:
    """Draw the value with one of its parts removed or replaced."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.booleans()):
            return {name: inner for name, inner in value.items() if name != key}
        return {**value, key: damaged_json(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], damaged_json(draw, value[at]), *value[at + 1 :]]
    return draw(json_values)


@st.composite
def definitions(draw: st.DrawFn) -> str:
    text = next((FLASHINFER / "definitions").rglob("*.json")).read_text()
    return json.dumps(damaged_json(draw, json.loads(text))) if draw(st.booleans()) else draw(damaged(text))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    shutil.copytree(FLASHINFER, folder / "flashinfer")
    shutil.copytree(ROBUST, folder / "robust")
    return folder


def write(path: Path, text: str) -> Path:
    """Write a task. Each needs its own file, because loaded tasks are cached by path and modification time."""
    path.write_bytes(text.encode(errors="surrogatepass"))
    return path


counted = iter(range(1 << 30))


@FEWER
@given(text=damaged(KERNELBENCH.read_text()))
def test_a_damaged_problem_of_kernelbench_is_loaded_or_refused(folder: Path, text: str) -> None:
    loaded(write(folder / f"problem_{next(counted)}.py", text))


@given(text=damaged(MARKED.read_text()))
def test_a_damaged_file_with_a_function_is_loaded_or_refused(folder: Path, text: str) -> None:
    path = write(folder / f"function_{next(counted)}.py", text)
    loaded(path)
    loaded(f"{path}:weighted")


@given(text=definitions())
def test_a_damaged_definition_of_flashinfer_bench_is_loaded_or_refused(folder: Path, text: str) -> None:
    loaded(write(folder / "flashinfer" / "definitions" / "rms" / f"damaged_{next(counted)}.json", text))


@given(text=damaged((ROBUST / "func_forward.py").read_text()), config=st.data())
def test_a_damaged_task_of_robust_kbench_is_loaded_or_refused(folder: Path, text: str, config: st.DataObject) -> None:
    task = folder / f"robust_{next(counted)}"
    shutil.copytree(folder / "robust", task)
    write(task / "func_forward.py", text)
    sizes = (task / "config_forward.json").read_text()
    write(task / "config_forward.json", config.draw(st.just(sizes) | damaged(sizes)))
    loaded(task)


def test_the_undamaged_tasks_are_loaded(folder: Path) -> None:
    tasks: list[Path | str] = [
        KERNELBENCH,
        f"{MARKED}:weighted",
        folder / "robust",
        *(folder / "flashinfer" / "definitions").rglob("sc*.json"),
    ]
    assert all(loaded(task) for task in tasks)
