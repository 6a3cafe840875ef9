"""Access of kernels on the emulated device to the host's state, which is refused or undone."""

import ctypes
import ctypes.util
import platform

import pytest
import torch
from device_kernels import rejected, run, single

from archive.records import Outcome
from evolve.devices.emulated.device import EmulatedDevice, floating_point_environment

I32 = torch.int32
ROUND = 'extern "C" int fesetround(int);'
# C's constants, which differ between processors.
DIVISION_BY_ZERO, ALL_FLAGS, UPWARDS = (4, 0x3D, "0x800") if "x86" in platform.machine() else (2, 0x1F, "0x400000")


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice()


def with_globals(declared: str, body: str) -> str:
    return single(body, "int* y").replace('extern "C" __global__', f'{declared}\nextern "C" __global__')


def zeros() -> dict[str, torch.Tensor]:
    return {"y": torch.zeros(32, dtype=I32)}


@pytest.mark.parametrize(
    "read",
    [
        "__builtin_ia32_rdtsc()", "__builtin_ia32_rdrand32_step((unsigned*)y)", "__builtin_ia32_stmxcsr()",
        '__builtin_cpu_supports("avx2")', "__builtin_readcyclecounter()", "(long)__builtin_frame_address(0)",
        "(long)__builtin_return_address(0)", "(long)__builtin_thread_pointer()", "__builtin_aarch64_get_fpcr()",
    ],
)  # fmt: skip
def test_functions_of_the_processor_are_refused(device: EmulatedDevice, read: str) -> None:
    error = rejected(device, single(f"y[0] = (int){read};", "int* y"), zeros())
    assert error.outcome is Outcome.COMPILE_ERROR
    assert "a function of the host's processor" in error.log


@pytest.mark.parametrize(
    ("declared", "body"),
    [
        ("__attribute__((constructor)) static void early() { *(volatile int*)16 = 1; }", "y[0] = 1;"),
        ("__attribute__((destructor)) static void late() { *(volatile int*)16 = 1; }", "y[0] = 1;"),
        ("struct Late { ~Late() { *(volatile int*)16 = 1; } }; static Late late;", "y[0] = 1;"),
        ("int begin(); static const int first = begin(); int begin() { return *(volatile int*)16; }", "y[0] = first;"),
        ('__attribute__((section(".init"))) void early() { *(volatile int*)16 = 1; }', "y[0] = 1;"),
        (
            'static int one() { return 1; }\nextern "C" { static void* chosen() { return (void*)one; }\n'
            'int number() __attribute__((ifunc("chosen"))); }',
            "y[0] = number();",
        ),
    ],
    ids=["constructor", "destructor", "object", "initialiser", "section", "ifunc"],
)
def test_code_that_runs_when_the_library_is_loaded_or_unloaded_is_refused(
    device: EmulatedDevice, declared: str, body: str
) -> None:
    error = rejected(device, with_globals(declared, body), zeros())
    assert error.outcome is Outcome.COMPILE_ERROR
    assert "constructor" in error.log or "runs when the kernel is loaded" in error.log


def test_a_variable_in_a_section_of_its_own_is_compared_after_calls(device: EmulatedDevice) -> None:
    declared = '__attribute__((section("own"))) int calls = 5;'
    error = rejected(device, with_globals(declared, "y[0] = calls++;"), zeros())
    assert error.outcome is Outcome.KEEPS_STATE
    assert "`calls`" in error.log


def test_a_kernel_that_changes_how_the_processor_rounds_is_refused_and_the_change_undone(
    device: EmulatedDevice,
) -> None:
    before = bytes(floating_point_environment())
    error = rejected(device, with_globals(ROUND, f"fesetround({UPWARDS}); y[0] = 1;"), zeros())
    assert error.outcome is Outcome.KEEPS_STATE
    assert "rounds" in error.log
    assert bytes(floating_point_environment()) == before


def test_a_kernel_that_changes_how_the_processor_rounds_and_fails_leaves_no_change(device: EmulatedDevice) -> None:
    before = bytes(floating_point_environment())
    rejected(device, with_globals(ROUND, f"fesetround({UPWARDS}); __trap();"), zeros())
    assert bytes(floating_point_environment()) == before


def test_flags_that_arithmetic_has_set_are_cleared_after_the_launch(device: EmulatedDevice) -> None:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.feclearexcept(ALL_FLAGS)
    y = zeros()
    run(device, single("y[0] = isinf(1.0f / (float)y[1]);", "int* y"), y)
    assert y["y"][0] == 1
    assert library.fetestexcept(DIVISION_BY_ZERO) == 0
