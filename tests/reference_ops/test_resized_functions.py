"""Functions with one example: their free sizes, and the other sizes at which kernels are checked."""

import random
from pathlib import Path

import pytest
import torch

from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload
from reference_ops.shapes import held_out
from reference_ops.tasks.smaller import MOST_ELEMENTS

FUNCTIONS = """
import torch

def scaled(x, weight):
    return torch.tanh(x) * weight

def normalised(x, columns):
    return torch.nn.functional.layer_norm(x, (columns,))

def product(a, b):
    return a @ b

def outer(x, rows, columns):
    return x * rows[:, None] * columns

def looked_up(ids, table):
    return table[ids]

def grouped(x, weight):
    return torch.nn.functional.conv2d(x, weight, groups=4)

def reshaped(x):
    return x.reshape(64, 128).sum(1)

def best(x, k):
    return x.topk(k).values

def doubled(x):
    return x * 2

def wide(x):
    return x.float().sum(1)

def second(x, y):
    return x + y

def paired(x):
    return x.reshape(x.shape[0], -1, 2).sum(2)
"""


def op(folder: Path, function: str, *examples: str) -> Op:
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "inputs.py").write_text(f"import torch\nexamples = [{', '.join(examples)}]\n")
    return catalog.load(f"{folder}/functions.py:{function}@{folder}/inputs.py")


@pytest.mark.parametrize(
    ("function", "example", "inputs"),
    [
        ("scaled", "lambda: (torch.randn(256, 512), torch.randn(512))", {"x": "x_0 x_1", "weight": "x_1"}),
        ("scaled", "lambda: (torch.randn(512, 512), torch.randn(512))", {"x": "x_0 x_1", "weight": "x_1"}),
        ("normalised", "lambda: (torch.randn(512, 512), 512)", {"x": "x_0 x_1"}),
        ("product", "lambda: (torch.randn(64, 64), torch.randn(64, 64))", {"a": "a_0 a_1", "b": "a_1 b_1"}),
        (
            "outer",
            "lambda: (torch.randn(64, 64), torch.randn(64), torch.randn(64))",
            {"x": "x_0 x_1", "rows": "x_0", "columns": "x_1"},
        ),
        ("looked_up", "(torch.randint(0, 9, (40,)), torch.randn(9, 16))", {"ids": "ids_0", "table": "table_0 table_1"}),
        ("grouped", "lambda: (torch.randn(8, 64, 32, 32), torch.randn(64, 16, 3, 3))",
         {"x": "x_0 64 x_2 x_3", "weight": "weight_0 16 weight_2 weight_3"}),
        ("reshaped", "lambda: torch.randn(64, 128)", {"x": "64 128"}),
        ("best", "lambda: (torch.randn(64, 128), 64)", {"x": "x_0 x_1"}),
    ],
)  # fmt: skip
def test_one_example_leaves_every_size_free_that_the_function_accepts(
    tmp_path: Path, function: str, example: str, inputs: dict[str, str]
) -> None:
    loaded = op(tmp_path, function, example)
    assert {spec.name: " ".join(spec.dims) for spec in loaded.inputs} == inputs
    free = [dim for dim, _ in loaded.gpu[0].dims]
    assert loaded.note.endswith(
        f"Sizes that vary: {', '.join(free)}. Those given as numbers are fixed." if free else "All its sizes are fixed."
    )


def test_every_size_that_is_checked_can_be_computed(tmp_path: Path) -> None:
    for function, example in (
        ("looked_up", "lambda: (torch.randint(0, 99, (40,)), torch.randn(99, 16))"),
        ("grouped", "lambda: (torch.randn(8, 64, 32, 32), torch.randn(64, 16, 3, 3))"),
    ):
        loaded = op(tmp_path, function, example)
        assert len({*loaded.emulated, *loaded.awkward}) >= 3
        for workload in (*loaded.emulated, *loaded.awkward):
            loaded.call(inputs_at(loaded, workload, 0, "cpu"), workload)


def test_an_example_that_is_too_large_to_emulate_is_made_smaller(tmp_path: Path) -> None:
    loaded = op(tmp_path, "scaled", "lambda: (torch.randn(8192, 4096), torch.randn(4096))")
    assert [workload.key for workload in loaded.gpu] == ["x_0=8192 x_1=4096 float32"]
    assert loaded.emulated
    assert all(sum(map(loaded.largest_tensor, [workload])) <= MOST_ELEMENTS for workload in loaded.emulated)
    assert {dict(workload.dims)["x_1"] % 2 for workload in loaded.awkward} >= {1}


def test_a_small_example_is_emulated_as_it_is(tmp_path: Path) -> None:
    loaded = op(tmp_path, "scaled", "lambda: (torch.randn(24, 32), torch.randn(32))")
    assert loaded.emulated[0] == loaded.gpu[0]


def test_with_examples_of_several_shapes_only_sizes_that_differ_are_free(tmp_path: Path) -> None:
    loaded = op(tmp_path, "doubled", "torch.zeros(8, 512)", "torch.zeros(8, 1024)")
    assert loaded.inputs[0].dims == ("8", "x_1")
    assert {dict(workload.dims)["x_1"] % 2 for workload in loaded.awkward} >= {1}


def test_large_examples_of_several_shapes_are_made_smaller_too(tmp_path: Path) -> None:
    loaded = op(tmp_path, "doubled", "torch.zeros(800, 512)", "torch.zeros(600, 512)")
    assert loaded.inputs[0].dims == ("x_0", "512")
    assert loaded.emulated


def test_examples_of_two_dtypes_are_workloads_of_two_dtypes(tmp_path: Path) -> None:
    loaded = op(tmp_path, "doubled", "torch.zeros(8, 64)", "torch.zeros(8, 64).bfloat16()", "torch.zeros(4, 32).half()")
    assert loaded.dtypes == ("float32", "bfloat16", "float16")
    assert [workload.dtype for workload in loaded.gpu] == ["float32", "bfloat16", "float16"]
    for workload in loaded.gpu:
        inputs = inputs_at(loaded, workload, 0, "cpu")
        assert str(loaded.call(inputs, workload)[0].dtype) == f"torch.{workload.dtype}"


def test_smaller_sizes_of_one_shape_have_every_dtype(tmp_path: Path) -> None:
    loaded = op(tmp_path, "doubled", "torch.zeros(800, 640)", "torch.zeros(800, 640).bfloat16()")
    assert {workload.dtype for workload in loaded.emulated} == {"float32", "bfloat16"}


def test_an_output_keeps_its_dtype_for_inputs_of_two_dtypes(tmp_path: Path) -> None:
    loaded = op(tmp_path, "wide", "torch.zeros(8, 64)", "torch.zeros(8, 64).bfloat16()")
    assert [spec.dtype for spec in (*loaded.inputs, *loaded.outputs)] == ["", "float32"]
    assert torch.float32 == loaded.call(inputs_at(loaded, loaded.gpu[1], 0, "cpu"), loaded.gpu[1])[0].dtype


def test_dtypes_that_cannot_be_combined_are_refused_with_a_hint(tmp_path: Path) -> None:
    half = "(torch.zeros(8, 64).half(), torch.zeros(8, 64).bfloat16())"
    with pytest.raises(CatalogError, match="`y` is float32 and bfloat16 where the first tensor is float32 and float16"):
        op(tmp_path, "second", "(torch.zeros(8, 64), torch.zeros(8, 64))", half)


def unlisted(found: Op) -> tuple[Workload, ...]:
    drawn = held_out(found, lambda _: True, random.Random(3), 5, 2**20)
    assert not {one.dims for one in drawn} & {one.dims for one in found.listed}
    return drawn


def test_shapes_that_no_list_names_are_drawn_for_a_function_and_computed(tmp_path: Path) -> None:
    found = op(tmp_path, "scaled", "lambda: (torch.randn(256, 512), torch.randn(512))")
    drawn = unlisted(found)
    assert len(drawn) == 5
    for workload in drawn:
        inputs = inputs_at(found, workload, 0, "cpu")
        (own,), (exact,) = found.call(inputs, workload), found.call_in_float64(inputs, workload)
        assert tuple(own.shape) == found.shape(found.outputs[0], workload)
        assert torch.allclose(own.double(), exact, atol=1e-5)
    assert not found.only_listed


def test_only_shapes_that_the_function_accepts_are_drawn(tmp_path: Path) -> None:
    found = op(tmp_path, "paired", "lambda: (torch.randn(64, 256),)")
    assert all(dict(one.dims)["x_1"] % 2 == 0 for one in unlisted(found))


def test_another_process_would_find_the_same_shapes(tmp_path: Path) -> None:
    examples = "lambda: (torch.randn(64, 96), torch.randn(96, 64))"
    first, second = (unlisted(op(tmp_path, "product", examples)) for _ in range(2))
    assert first
    assert first == second


def test_only_listed_shapes_count_where_indices_depend_on_the_sizes(tmp_path: Path) -> None:
    found = op(tmp_path, "looked_up", "(torch.randint(0, 9, (40,)), torch.randn(9, 16))")
    assert found.only_listed
    assert not unlisted(found)


def test_a_number_that_must_equal_a_size_is_never_drawn_differently(tmp_path: Path) -> None:
    found = op(tmp_path, "normalised", "lambda: (torch.randn(512, 512), 512)")
    drawn = held_out(found, lambda _: True, random.Random(3), 9, 2**20)
    assert all(dict(one.parameters)["columns"] == dict(one.dims)["x_1"] for one in drawn)
