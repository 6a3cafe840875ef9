"""Compiling a baseline ahead: fills torch.compile's caches on disk, from which the process that times it then loads.

Nothing is launched on the device meanwhile, so that other processes can take times. Inputs are fake tensors, which have
no memory. The compiled function is not called. Where torch.compile would choose by measuring (matrix products, when
autotuned), it is stopped, and chooses later in the process that has the device alone, so that no choice depends on what
else the device was doing.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

import torch

from evolve.evaluation.baselines import COMPILE_SECONDS, MODES, switched_off, time_limit
from reference_ops.op import Op, Tensors, Workload
from reference_ops.precision import TORCH_DTYPES

MEASURING = "benchmark"  # the beginning of the names of methods that measure


class _StoppedError(BaseException):
    """Ends a compilation. It is no Exception, because the compiler takes those for a choice that does not work."""


def compile_ahead(name: str, op: Op, workload: Workload, torch_device: str) -> bool:
    """Compile a baseline for this workload, up to where the device is needed; return whether that is the end."""
    if name not in MODES or switched_off():
        return False
    ended: list[bool] = []

    def call(*_: object) -> NoReturn:
        ended.append(True)
        raise _StoppedError

    try:
        _keep_from_measuring()
        compiler = torch._TorchCompileInductorWrapper(MODES[name], None, False)  # noqa: SLF001 - there is no public name

        def backend(graph: Any, inputs: Any) -> Callable[..., NoReturn]:
            compiler(graph, inputs)
            return call

        function = torch.compile(op.baseline or op.reference, dynamic=False, backend=backend)
        with time_limit(COMPILE_SECONDS[name]):
            function(*fake_inputs(op, workload, torch_device).values(), **dict(workload.parameters))
    except (_StoppedError, Exception):  # noqa: BLE001, S110 - what fails here fails again where it counts
        pass
    finally:
        torch._dynamo.reset()  # noqa: SLF001 - torch.compiler.reset is this function
    return bool(ended)


def fake_inputs(op: Op, workload: Workload, torch_device: str) -> Tensors:
    """Return inputs that have sizes but no numbers."""
    modes: Any = import_module("torch._subclasses.fake_tensor")
    with modes.FakeTensorMode():
        return {
            spec.name: torch.empty(
                op.shape(spec, workload), dtype=TORCH_DTYPES[spec.dtype or workload.dtype], device=torch_device
            )
            for spec in op.inputs
        }


def _keep_from_measuring() -> None:
    """Let this process compile on its own, and make torch.compile stop where it would measure.

    Raises an exception if this version of PyTorch measures in another way, so that nothing is compiled ahead.
    """
    settings: Any = import_module("torch._inductor.config")
    settings.compile_threads = 1
    measuring: Any = import_module("torch._inductor.runtime.benchmarking").benchmarker
    methods = [name for name in dir(measuring) if name.startswith(MEASURING) and callable(getattr(measuring, name))]
    if not methods:
        raise RuntimeError("torch.compile's measurements were not found")
    for name in methods:
        setattr(measuring, name, _stop)


def _stop(*_arguments: object, **_options: object) -> NoReturn:
    raise _StoppedError
