"""Kernels that every device must refuse, each with the same outcome and a useful log."""

import pytest
import torch
from device_kernels import EVERY_DEVICE, bound, made, out_of, rejected, single

from archive.binding import IllegalError
from archive.kernel import Bound, parse
from archive.records import Outcome
from evolve.devices.device import Device, RejectedError

I32 = torch.int32


@pytest.fixture(scope="module", params=EVERY_DEVICE)
def device(request: pytest.FixtureRequest) -> Device:
    return made(request.param)


def test_a_missing_extern_c_is_malformed(device: Device) -> None:
    kernel = single("y[0] = 1;", "int* y").replace('extern "C" __global__', "__global__")
    error = rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)})
    assert error.outcome == Outcome.MALFORMED
    assert "test_entry" in error.log


def test_a_misspelled_entry_is_malformed_and_the_log_lists_the_entries(device: Device) -> None:
    kernel = single("y[0] = 1;", "int* y").replace("void test_entry", "void tset_entry")
    error = rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)})
    assert error.outcome == Outcome.MALFORMED
    assert "`test_entry`" in error.log
    assert "tset_entry" in error.log


@pytest.mark.parametrize(
    ("parameters", "args"),
    [
        ("int* y", '["y", "n"]'),
        ("int* y, int n, int m", '["y", "n"]'),
        ("int* y, short n", '["y", "n"]'),
        ("int* y, int n", '["y", "huge"]'),
        ("List<int*, 3> y, int n", '[["y", "y"], "n"]'),
    ],
    ids=["too many", "too few", "two bytes", "out of range", "list too short"],
)
def test_arguments_that_do_not_fit_the_entry_are_malformed(device: Device, parameters: str, args: str) -> None:
    kernel = (
        f'/*---\nop = "test"\n[[launch]]\nentry = "test_entry"\ngrid = [1]\nblock = [1]\nargs = {args}\n---*/\n'
        f'extern "C" __global__ void test_entry({parameters}) {{}}\n'
    )
    error = rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)}, n=3, huge=2**40)
    assert error.outcome == Outcome.MALFORMED
    assert "launch 0" in error.log


def test_a_compile_error_names_the_line_in_the_kernels_text(device: Device) -> None:
    kernel = single("int fine = 1;\ny[0] = missing_name;", "int* y")
    plan = bound(kernel, {"y": torch.zeros(1, dtype=I32)})
    line = plan.kernel.text.splitlines().index("y[0] = missing_name;") + 1
    with pytest.raises(RejectedError, match="missing_name") as caught:
        device.compile(plan)
    assert caught.value.outcome == Outcome.COMPILE_ERROR
    assert f"kernel.cu:{line}" in caught.value.log or f"kernel.cu({line})" in caught.value.log


@pytest.mark.parametrize("header", ["<fstream>", "<thread>", "<unistd.h>", '"/etc/passwd"'])
def test_host_headers_do_not_compile(device: Device, header: str) -> None:
    kernel = single("y[0] = 1;", "int* y").replace("#include <cuda_fp16.h>", f"#include {header}")
    assert rejected(device, kernel, {"y": torch.zeros(1, dtype=I32)}).outcome == Outcome.COMPILE_ERROR


def test_headers_that_models_often_include_compile(device: Device) -> None:
    headers = "cuda_runtime.h", "math.h", "stdint.h", "cstdint", "float.h", "cooperative_groups.h"
    lines = "\n".join(f"#include <{header}>" for header in headers)
    kernel = single("y[0] = FLT_MAX > 1e38f && INT32_MAX > 0 && isinf(INFINITY);", "int* y", block="[1]")
    assert out_of(device, kernel.replace("#include <cuda_fp16.h>", lines), 1) == [1]


@pytest.mark.parametrize(
    "plan",
    [
        'library = "matmul"\nargs = ["y"]',
        'entry = "test_entry"\ngrid = [1]\nblock = [1]\nargs = ["y"]\noverlap = true',
    ],
    ids=["library", "overlap"],
)
def test_reserved_parts_of_a_plan_are_unsupported(device: Device, plan: str) -> None:
    kernel = f'/*---\nop = "test"\n[[launch]]\n{plan}\n---*/\nextern "C" __global__ void test_entry(int* y) {{}}\n'
    with pytest.raises(RejectedError, match="not supported yet") as caught:
        device.compile(Bound(parse(kernel), (), (), (), ()))
    assert caught.value.outcome == Outcome.UNSUPPORTED


def test_too_much_shared_memory_is_illegal() -> None:
    kernel = single("y[0] = 1;", "int* y", more="shared = 300000")
    with pytest.raises(IllegalError):
        bound(kernel, {"y": torch.zeros(1, dtype=I32)})
