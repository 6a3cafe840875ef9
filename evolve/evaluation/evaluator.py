"""Evaluator: a device with the memory and the times of baselines that are kept from one evaluation to the next."""

import itertools
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evolve.devices.choose import COMPILE, EAGER, EVERY_BASELINE, policy_of
from evolve.devices.device import Device
from evolve.errors import UserError
from evolve.evaluation import baselines
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.baselines import BaselineCache
from evolve.evaluation.buffers import Arena
from evolve.evaluation.op_check import blind_spots
from reference_ops import catalog
from reference_ops.op import Op, Workload


@dataclass
class Evaluator:
    """A device, with the memory and the baselines' times that are kept from one evaluation to the next."""

    device: Device
    watch: Callable[[str], None]  # called with the name of each phase that begins
    cache: BaselineCache = field(default_factory=baselines.cache)
    timed: dict[tuple[str, str], Baselines] = field(default_factory=dict)  # key: op and workload
    defers: bool = False  # leave out unknown times of torch.compile; the engine completes measurements later
    lacking: list[str] = field(default_factory=list)  # workloads that lack times of torch.compile

    def __post_init__(self) -> None:
        self.arena = Arena(self.device.torch_device, self.device.tools.fenced)
        self._eager: dict[tuple[str, str], Baselines] = {}

    def known(self, op: Op, workload: Workload) -> Baselines | None:
        """Return the times of all baselines if this process has them, or another process has cached them."""
        key = (op.name, workload.key)
        if key in self.timed or not self.uses_torch_compile:
            return self.timed.get(key)
        if found := self.cache.find(op, workload, self.device.info):
            self.timed[key] = found
        return found

    def baselines_at_hand(self, op: Op, workload: Workload) -> Baselines:
        """Return the baselines' times.

        If `defers` is set, return only eager PyTorch's times and add the workload to `lacking`.
        """
        if not self.defers or self.known(op, workload):
            return self.baselines_for(op, workload)
        self.lacking.append(workload.key)
        key = (op.name, workload.key)
        if key not in self._eager:
            self._eager[key] = baselines.timed(op, workload, self.device, self.watch, (EAGER,))
        return self._eager[key]

    def baselines_for(self, op: Op, workload: Workload, given_up: str = "") -> Baselines:
        """Return the baselines' times, timed now or before, from now on without the baseline that is given up.

        Raises UserError if wrong results would pass at this workload.
        """
        if found := self.known(op, workload):
            return found
        self.watch("prepare")
        compiler = baselines.import_compiler(self.device)
        self.arena.release()
        _refuse_blind(op, workload, self.device.torch_device)
        compiler.join()
        return self.time_baselines(op, workload, given_up)

    def time_baselines(self, op: Op, workload: Workload, given_up: str = "") -> Baselines:
        """Time the baselines, except those that took too long to prepare for another workload of the op."""
        here = op.name, workload.key
        without = {times.given_up for key, times in self.timed.items() if key[0] == op.name and key != here}
        names = itertools.takewhile(lambda name: name not in {given_up, *without}, EVERY_BASELINE)
        found = baselines.timed(op, workload, self.device, self.watch, names)
        found = self.timed[here] = replace(found, given_up=found.given_up or given_up)
        if self.uses_torch_compile:
            self.cache.keep(op, workload, self.device.info, found)
        return found

    @property
    def uses_torch_compile(self) -> bool:
        """Whether torch.compile is a baseline on this device. If so, times are cached: compiling takes seconds."""
        return COMPILE in policy_of(self.device.info.kind).baselines


def _refuse_blind(op: Op, workload: Workload, torch_device: str) -> None:
    """Raise UserError if an evaluation would accept wrong results at this workload."""
    spots = blind_spots(op, workload, secrets.randbelow(2**31), torch_device, quick=True)
    if spots:
        locator = shlex.quote(catalog.loaded_as(op))
        raise UserError(
            f"{op.name} cannot be judged at {workload.key}: {spots[0].words}",
            f"run `evolve ops --check {locator}` for details; other sizes or inputs make the fault visible",
        )
