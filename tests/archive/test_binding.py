from dataclasses import replace

import pytest

from archive.binding import IllegalError, Point, accepts, bind
from archive.kernel import BoundMap, Kernel, Pointer, Pointers, parse
from archive.plan import PlanError

POINT = Point(
    dtype="float32",
    dims={"rows": 10, "cols": 96},
    parameters={"eps": 1e-6, "axis": 1},
    tensors={"x": "float32", "out": "float32"},
    sms=4,
    shared_bytes=1000,
)


def kernel(*top: str, launch: str = "", body: str = "") -> Kernel:
    lines = ['op = "softmax"', *top, "[knobs]", "N = [4, 0]", body, "[[launch]]", 'entry = "f"']
    keys = {"grid": "[1]", "block": "[32]", "args": "[]"}
    lines += [f"{key} = {value}" for key, value in keys.items() if f"{key} =" not in launch]
    return parse("\n".join(["/*---", *lines, launch, "---*/", "code"]))


def test_expressions_are_evaluated_at_the_point() -> None:
    bound = bind(
        kernel(
            'specialize = ["cols", "lanes"]',
            body='[let]\nlanes = "cols // N"\n[workspace]\nw = { shape = ["rows", "lanes"], dtype = "x" }',
            launch='grid = ["rows", "sms"]\nshared = "N * itemsize(x)"\nargs = ["x", "w", "rows", "eps", ["x", "out"]]',
        ),
        POINT,
    )
    assert bound.constants == (("cols", 96), ("lanes", 24))
    assert (bound.workspace[0].elements, bound.workspace[0].nbytes) == (240, 960)
    launch = bound.launches[0]
    assert (launch.grid, launch.block, launch.shared) == ((10, 4, 1), (32, 1, 1), 16)
    assert launch.args == (Pointer("x"), Pointer("w"), 10, 1e-6, Pointers(("x", "out")))


def mapped(described: str) -> Kernel:
    return kernel(body=f"[tensor_maps]\nm = {{ {described} }}", launch='args = ["m"]')


def test_a_tensor_map_has_sizes_and_strides_of_contiguous_elements() -> None:
    described = 'tensor = "x", shape = [2, "rows // 2", "cols"], box = [1, "N", 32], swizzle = 128'
    (found,) = bind(mapped(described), POINT).launches[0].args
    assert isinstance(found, BoundMap)
    assert found == BoundMap("m", "x", "float32", (2, 5, 96), (1, 4, 32), 128)
    assert (found.strides, found.elements) == ((5 * 96 * 4, 96 * 4), 960)


def test_a_tensor_map_of_a_workspace_has_its_dtype() -> None:
    body = '[workspace]\nw = { shape = [64], dtype = "bfloat16" }\n'
    body += '[tensor_maps]\nm = { tensor = "w", shape = [64], box = [8] }'
    (found,) = bind(kernel(body=body, launch='args = ["m"]'), POINT).launches[0].args
    assert isinstance(found, BoundMap)
    assert (found.tensor, found.dtype) == ("w", "bfloat16")


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ("shape = [257, 96], box = [257, 32]", r"1 to 256 elements, not \[257, 32\]"),
        ('shape = [1], box = ["N - 4"]', "1 to 256 elements"),
        ('shape = ["rows - 10"], box = [4]', "not within 1 and 2"),
        ("shape = [8], box = [6]", "a line of the box has 24 bytes; it must be a multiple of 16"),
        ("shape = [4, 64], box = [4, 64], swizzle = 128", "has 256 bytes, but a swizzle of 128 requires 128"),
        ("shape = [4, 64], box = [4, 16], swizzle = 128", "has 64 bytes, but a swizzle of 128 requires 128"),
        ("shape = [4, 6], box = [4, 4]", "the stride of 24 bytes is not a multiple of 16"),
        ("shape = [2, 4294967296, 64], box = [1, 1, 4]", r"the stride of 1099511627776 bytes is not .* below 2\^40"),
    ],
)
def test_a_tensor_map_beyond_the_copy_engine_is_illegal(described: str, reason: str) -> None:
    with pytest.raises(IllegalError, match=f"tensor map `m`: .*{reason}"):
        bind(mapped(f'tensor = "x", {described}'), POINT)


def test_a_grid_with_a_zero_skips_the_launch() -> None:
    assert bind(kernel(launch='grid = ["rows - 10"]'), POINT).launches == ()


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ('block = ["1025"]', "limit of 1024"),
        ("block = [1, 1, 65]", "limit of 1024"),
        ('block = ["N - 4"]', "limit of 1024"),
        ("grid = [1, 65536]", "exceeds the limit"),
        ('grid = ["-1"]', "exceeds the limit"),
        ("shared = 1001", "1001 bytes of shared memory"),
    ],
)
def test_a_setting_beyond_the_hardware_limits_is_illegal_not_malformed(launch: str, reason: str) -> None:
    with pytest.raises(IllegalError, match=reason):
        bind(kernel(launch=launch), POINT)


def test_an_unmet_requirement_is_illegal_and_its_error_names_the_setting() -> None:
    with pytest.raises(IllegalError, match=r"`N < 4` does not hold .*N=4"):
        bind(kernel('require = ["N < 4"]'), POINT)


def test_a_division_by_zero_is_an_error_in_the_plan_with_its_line() -> None:
    with pytest.raises(PlanError, match=r"line 9: division by zero in `rows // N` \| grid = "):
        bind(kernel(launch='grid = ["rows // N"]').with_knobs({"N": 0}), POINT)


def test_a_negative_workspace_is_an_error_in_the_plan() -> None:
    with pytest.raises(PlanError, match="negative size"):
        bind(kernel(body='[workspace]\nw = { shape = ["rows - 11"], dtype = "int32" }'), POINT)


def test_when_and_dtypes_decide_what_is_accepted() -> None:
    chooser = kernel('when = "cols % 8 == 0 and itemsize(x) == 4"', 'dtypes = ["float32"]')
    assert accepts(chooser, POINT)
    assert not accepts(chooser, replace(POINT, dims={"rows": 10, "cols": 97}))
    assert not accepts(chooser, replace(POINT, dtype="bfloat16"))
