"""A scripted device: its programs are PyTorch functions, and its clock is a function given by the test."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import bad_kernels
import torch

from archive.binding import bind
from archive.kernel import Bound
from archive.records import DeviceInfo, Resources, Traits
from evolve.devices.device import Program, Tools
from evolve.op_on_device import point
from reference_ops import catalog
from reference_ops.op import workloads

OP = catalog.load(str(Path(__file__).parents[1] / "samples" / "twice.py"))
WORKLOAD = OP.gpu[0]  # 2**20 float32 numbers: 4.19 MB read and 4.19 MB written
# for tests in which the size makes no difference
SMALL_OP = replace(OP, gpu=workloads("float32 bfloat16", {"n": 1 << 12}))
INFO = DeviceInfo("cuda", "Scripted", "sm_90a", 1, 1024, copy_gb_s=1000.0, tflops=(("float32", 1.0),))
Work = Callable[[Mapping[str, torch.Tensor]], None]


def twice(tensors: Mapping[str, torch.Tensor]) -> None:
    tensors["out"].copy_(2 * tensors["x"])


@dataclass
class ScriptedProgram:
    """A program that calls `work` for every launch."""

    bound: Bound
    work: Work = twice
    resources: tuple[Resources, ...] = ()
    log: str = ""
    traits: Traits | None = None

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.work(tensors)


@dataclass
class ScriptedDevice:
    clock: Callable[[], float] = lambda: 20.0
    info: DeviceInfo = INFO
    work: Work = twice
    torch_device: str = "cpu"
    tools: Tools = field(default_factory=Tools)
    runs: deque[Mapping[str, torch.Tensor]] = field(default_factory=deque)

    def compile(self, bound: Bound) -> Program:
        return ScriptedProgram(bound, self.work)

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        self.runs.append(tensors)
        program.launch(tensors)

    def time(self, call: Callable[[], object]) -> float:
        call()
        return self.clock()


def program(work: Work = twice) -> ScriptedProgram:
    return ScriptedProgram(bind(bad_kernels.twice_kernel(), point(OP, WORKLOAD, INFO)), work)
