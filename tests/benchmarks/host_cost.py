"""Host time of a call of each exported function whose shape was seen before, beside PyTorch's own call.

    PYTHONPATH=. python tests/benchmarks/host_cost.py [FUNCTION...] [--device cuda]

On a GPU, calls are enqueued and not waited for. On a CPU, the driver is replaced by a C function that does nothing: the
time is that of all other work, while PyTorch's call also computes its small result.
"""

import argparse
import ctypes
import random
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import torch  # noqa: E402
from emulated_machine import primitives  # noqa: E402
from gpu_records import H200  # noqa: E402

from archive.kernel import Bound  # noqa: E402
from archive.records import DeviceInfo  # noqa: E402
from evolve.devices.cuda.translation import source  # noqa: E402
from evolve.export.families import forms  # noqa: E402
from evolve.export.template import driver  # noqa: E402
from evolve.export.template.drawn import Draw, Drawn, changed, learning, placed, tensors  # noqa: E402  # noqa: E402
from evolve.export.template.forms import Form  # noqa: E402
from evolve.export.template.free import slots  # noqa: E402
from evolve.export.template.functions import Function  # noqa: E402
from evolve.export.template.launching import Buffers, Gpus, Machine, Ready  # noqa: E402
from evolve.export.template.nvrtc import nvrtc  # noqa: E402
from evolve.export.template.plans import Launchable  # noqa: E402
from evolve.export.template.recipes import RECIPES  # noqa: E402
from reference_ops import catalog  # noqa: E402
from reference_ops.op import Op, Workload  # noqa: E402

CALLS, REPEATS, TRIED = 200, 5, 20


class NoDriver:
    """A driver that accepts everything and does nothing; a launch is a call of a C function."""

    def __init__(self) -> None:
        self.cuLaunchKernelEx = ctypes.CDLL(None).labs
        self.cuLaunchKernelEx.restype = None

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, *_: object) -> int:  # noqa: N802
        found._obj.value = 1 << 20  # every cooperative grid fits
        return 0

    def __getattr__(self, _name: str) -> Callable[..., int]:
        return lambda *_: 0


@dataclass(frozen=True)
class NoLaunches:
    """The CPU presented as a GPU: a launch does everything except the driver's own work."""

    device_type: str = "cpu"
    opaque_us: float = 0.0

    @classmethod
    def pretended(cls) -> "NoLaunches":
        """Replace the functions that need a GPU."""
        fake: Any = NoDriver()
        replaced: list[tuple[Any, str, Any]] = [
            (driver, "driver", lambda: fake),
            (torch._C, "_cuda_getDevice", lambda: 0),
            (torch._C, "_cuda_getCurrentRawStream", lambda _device: 77),
        ]
        for module, name, value in replaced:
            setattr(module, name, value)
        return cls()

    @property
    def host_us(self) -> Callable[[Callable[[], object]], float]:
        return lambda _: 1.0

    @property
    def device_us(self) -> Callable[[Callable[[], object], torch.device], float]:
        return lambda *_: 1.0

    def described(self, device: torch.device) -> str:
        return f"no launches on {device}"

    def info(self, _device: torch.device) -> DeviceInfo:
        return H200

    def capturing(self, _device: torch.device) -> bool:
        return False

    def prepare(self, op: Op, workload: Workload, bound: Bound, _device: torch.device) -> Launchable:
        program = driver.Program(bound, nvrtc().compiled(source(bound), H200.arch), H200.sms)
        return Ready(program, torch.device("cpu", 0), Buffers.of(op, workload, bound), slots(op, bound.kernel))


@dataclass(frozen=True)
class Renamed(Gpus):
    """The GPUs of this machine, presented as the GPU of the made-up measurements. The host's time is not considered."""

    def info(self, device: torch.device) -> DeviceInfo:
        return replace(super().info(device), name=H200.name)

    @property
    def host_us(self) -> Callable[[Callable[[], object]], float]:
        return lambda _: 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", nargs="*", help="functions [default: all that PyTorch has, too]")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other count as CPU time
    machine: Machine = Renamed() if given.device.startswith("cuda") else NoLaunches.pretended()
    print(f"host time per call in microseconds on {given.device}; of a forward that asks for gradients, and both ways")
    columns = f"{'PyTorch':>9}{'package':>9}{'ratio':>7}"
    print(f"{'function':<30}{columns}  forward:{columns}  both:{columns}")
    for form in sorted(forms(), key=lambda one: one.name):
        if not given.functions or form.name in given.functions:
            print(f"{form.name:<30}{_line(form, machine, torch.device(given.device))}", flush=True)


def _line(form: Form, machine: Machine, device: torch.device) -> str:
    backward = [name for op in form.ops for name in catalog.load(op).backward]
    with tempfile.TemporaryDirectory() as folder:
        function = Function(form, primitives(dict.fromkeys([*form.ops, *backward]), Path(folder), machine))
        drawn = _with_kernel(function, device)
        if drawn is None:
            return "   no random call runs a kernel"
        with torch.no_grad():
            plain = _compared(function, drawn, _us)
        learned = learning(drawn)
        return f"{plain}          {_compared(function, learned, _us)}       {_compared(function, learned, _both_us)}"


def _with_kernel(function: Function, device: torch.device) -> Drawn | None:
    """Return a random call with contiguous float32 tensors for which a kernel runs, if possible without copies."""
    found = None
    for number in range(TRIED):
        drawn = RECIPES[function.form.name](Draw(random.Random(number), torch.float32))
        drawn = changed(drawn, lambda x: placed(x.contiguous().clone(), device))
        if function.explain(drawn.arguments, drawn.named).kernel:
            with torch.no_grad():
                function(*drawn.arguments, **drawn.named)
            calls = function._lowered(drawn.arguments, drawn.named)
            in_place = not isinstance(calls, str) and all(x.is_contiguous() for call in calls for x in call.views)
            if in_place and function.recall(drawn.arguments, drawn.named) is not None:
                return drawn
            found = found or drawn
    return found


def _compared(function: Function, drawn: Drawn, us: Callable[[Callable[..., object], Drawn], float]) -> str:
    try:
        theirs, ours = (us(one, drawn) for one in (function.form.pytorch, function))
    except RuntimeError as error:
        return f"{type(error).__name__:>25}"
    return f"{theirs:>9.1f}{ours:>9.1f}{ours / theirs:>7.2f}"


def _us(function: Callable[..., object], drawn: Drawn) -> float:
    def call() -> object:
        return function(*drawn.arguments, **drawn.named)

    call()
    # CPU time of this process, because other processes use the CPU, too.
    of_gpu = any(x.is_cuda for x in tensors(drawn.arguments))
    timer = time.perf_counter if of_gpu else time.process_time
    return min(timeit.repeat(call, number=CALLS, repeat=REPEATS, timer=timer)) / CALLS * 1e6


def _both_us(function: Callable[..., Any], drawn: Drawn) -> float:
    """Return the time of a forward and its backward."""
    learned = [x for x in tensors(drawn.arguments) if x.requires_grad]
    grads: dict[str, Any] = {}

    def both(*arguments: Any, **named: Any) -> None:
        result = function(*arguments, **named)
        outs = [x for x in tensors([result]) if x.requires_grad]
        given = grads.setdefault("given", [torch.randn_like(x) for x in outs])
        torch.autograd.grad(outs, learned, given, allow_unused=True)

    return _us(both, drawn)


if __name__ == "__main__":
    main()
