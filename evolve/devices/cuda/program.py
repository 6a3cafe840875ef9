"""A cubin on the GPU: loaded once, launched with raw parameter blocks on PyTorch's current stream."""

import math
from collections.abc import Mapping

import torch
from cupy_backends.cuda.api import driver

from archive.binding import Bound
from archive.records import Outcome, Resources, Traits
from evolve.devices.cuda.compiler import Cubin
from evolve.devices.cuda.launching import Launch, loaded, prepared
from evolve.devices.device import RejectedError


class CudaProgram:
    """Every launch of a plan, ready to be enqueued."""

    def __init__(self, bound: Bound, cubin: Cubin, sms: int) -> None:
        self.bound = bound
        self.resources: tuple[Resources, ...] = cubin.resources
        self.log = cubin.log
        self._cubin = cubin
        self.module = loaded(cubin.image)
        self.calls = 0
        static = {entry.entry: entry.shared_bytes for entry in cubin.resources}
        self._launches = [
            prepared(self.module, launch, cubin.entries[launch.entry].parameter_bytes, static.get(launch.entry, 0))
            for launch in bound.launches
        ]
        for launch in self._launches:
            if launch.bound.cooperative:
                _check_residency(launch, sms)

    @property
    def traits(self) -> Traits:
        return self._cubin.traits

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.calls += 1
        for workspace in self.bound.workspace:
            if workspace.zero:
                tensors[workspace.name].zero_()
        stream = torch.cuda.current_stream().cuda_stream
        for launch in self._launches:
            launch.enqueue(lambda name: tensors[name].data_ptr(), stream)


def _check_residency(launch: Launch, sms: int) -> None:
    threads, blocks = math.prod(launch.bound.block), math.prod(launch.bound.grid)
    per_sm = driver.occupancyMaxActiveBlocksPerMultiprocessor(launch.function.ptr, threads, launch.bound.shared)
    resident = sms * per_sm
    if blocks > resident:
        where = f"launch {launch.bound.index}"
        message = f"{where}: a cooperative grid of {blocks} blocks; {resident} can be resident at once"
        raise RejectedError(Outcome.ILLEGAL, message)
