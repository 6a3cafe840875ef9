"""Profiles of a kernel on a scripted device."""

import time
from collections.abc import Mapping
from dataclasses import replace

import bad_kernels
import pytest
import torch
from scripted_device import INFO, OP, WORKLOAD, ScriptedDevice

from archive.kernel import Bound, Kernel, parse
from archive.records import Outcome
from evolve.devices.device import Counted, Profiler, RejectedError, Tools
from evolve.evaluation.requests import ProfileResult
from evolve.evaluation.time_pytorch import profiled

Tensors = Mapping[str, torch.Tensor]


def described(bound: Bound, inputs: Tensors, outputs: Mapping[str, int], seconds: float) -> Counted:
    """Report the sizes of the arguments in place of hardware counters."""
    assert seconds > 10
    sizes = (("in", float(inputs["x"].nbytes)), ("out", float(outputs["out"])), ("drawn", float(inputs["x"].std())))
    return Counted((*sizes, ("blocks", float(bound.launches[0].grid[0]))))


KERNEL = bad_kernels.twice_kernel()


def profiling(profiler: Profiler) -> ScriptedDevice:
    return ScriptedDevice(tools=Tools(profiler=profiler))


def answer(device: ScriptedDevice, kernel: Kernel = KERNEL, workload: str = WORKLOAD.key) -> ProfileResult:
    return profiled(kernel, OP, workload, device, lambda _phase: None)


def test_a_profile_names_its_kernel_workload_and_device() -> None:
    found = answer(profiling(described)).profile
    assert found
    assert (found.kernel_id, found.op, found.device, found.workload) == (KERNEL.id, "twice", INFO.key, WORKLOAD.key)
    assert found.created == pytest.approx(time.time(), abs=60)


def test_a_profile_runs_at_the_workloads_sizes_on_random_inputs() -> None:
    found = answer(profiling(described)).profile
    assert found
    counted = dict(found.counters)
    assert (counted["in"], counted["out"], counted["blocks"]) == (2**22, 2**22, 2**20 / 128)
    assert counted["drawn"] == pytest.approx(1, abs=0.05)


def test_the_phase_is_reported_before_the_profiler_runs() -> None:
    phases: list[str] = []
    device = profiling(lambda *_: Counted((("phases", len(phases)),)))
    found = profiled(KERNEL, OP, WORKLOAD.key, device, phases.append).profile
    assert phases == ["profile"]
    assert found
    assert found.counters == (("phases", 1),)


def test_a_device_without_a_profiler_never_has_a_profile() -> None:
    found = answer(ScriptedDevice())
    assert found.profile is None
    assert found.lasting
    assert "ncu was not found" in found.fault


@pytest.mark.parametrize("lasting", [True, False])
def test_the_reason_why_a_profiler_fails_is_in_the_result(lasting: bool) -> None:
    found = answer(profiling(lambda *_: Counted(fault="not today", lasting=lasting)))
    assert found == ProfileResult(None, "not today", lasting=lasting)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (bad_kernels.UNKNOWN_TENSOR, "unknown argument `y`"),
        (parse(bad_kernels.twice_kernel().text.replace("[knobs]", 'dtypes = ["bfloat16"]\n[knobs]')), "not accepted"),
        (parse(bad_kernels.twice_kernel().text.replace("[knobs]", 'require = ["n < 9"]\n[knobs]')), "`n < 9` does not"),
    ],
    ids=["malformed", "not accepted", "illegal"],
)
def test_a_kernel_that_does_not_run_at_the_workload_has_no_profile(kernel: Kernel, reason: str) -> None:
    found = answer(profiling(described), kernel)
    assert found.profile is None
    assert reason in found.fault
    assert not found.lasting


def test_a_kernel_that_does_not_compile_has_no_profile() -> None:
    def refuse(bound: Bound, inputs: Tensors, outputs: Mapping[str, int], seconds: float) -> Counted:
        raise RejectedError(Outcome.COMPILE_ERROR, "kernel.cu(3): error: expected a `;`")

    found = answer(profiling(refuse))
    assert found.fault == f"{WORKLOAD.key}: compile error: kernel.cu(3): error: expected a `;`"


def test_an_unknown_workload_is_named() -> None:
    assert "no workload `n=3 float32`" in answer(profiling(described), workload="n=3 float32").fault


def test_inputs_that_are_too_large_are_not_profiled() -> None:
    large = replace(WORKLOAD, dims=(("n", 2**29),))
    op = replace(OP, gpu=(*OP.gpu, large), emulated=(*OP.emulated, large))
    found = profiled(KERNEL, op, large.key, profiling(described), lambda _phase: None)
    assert found.profile is None
    assert "2.1 GB of inputs" in found.fault
