from dataclasses import replace

import pytest

from archive.binding import IllegalError, Point, Pointer, Pointers, accepts, bind
from archive.kernel import Kernel, parse
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


def test_a_grid_with_a_zero_skips_the_launch() -> None:
    assert bind(kernel(launch='grid = ["rows - 10"]'), POINT).launches == ()


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ('block = ["1025"]', "limit of 1024"),
        ("block = [1, 1, 65]", "limit of 1024"),
        ('block = ["N - 4"]', "limit of 1024"),
        ("grid = [1, 65536]", "breaks the limit"),
        ('grid = ["-1"]', "breaks the limit"),
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
