"""A minimal engine that evaluates in the calling process: a kernel that crashes or hangs ends or blocks the process."""

import secrets
from collections.abc import Iterable, Iterator

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.devices import choose
from evolve.engines.engine import Job
from evolve.errors import UserError
from evolve.evaluation.evaluate import evaluate
from evolve.evaluation.evaluator import Evaluator
from evolve.evaluation.time_pytorch import profiled
from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.op import Op


class InProcessEngine:
    """Engine that evaluates one job after the other on the emulated device."""

    def __init__(self) -> None:
        self._evaluator = Evaluator(choose.make("emulated"), lambda _phase: None)
        self.unprofiled = ""

    @property
    def info(self) -> DeviceInfo:
        return self._evaluator.device.info

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            seed, bars = secrets.randbelow(2**31), dict(job.bars)
            yield evaluate(
                job.kernel, _loaded(job.op), self._evaluator, shapes_seed=seed, bars=bars, confirm=job.confirm
            )

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        result = profiled(kernel, _loaded(op), workload, self._evaluator.device, lambda _phase: None)
        self.unprofiled = result.fault
        return result.profile

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""


def _loaded(op: str) -> Op:
    try:
        return catalog.load(op)
    except CatalogError as error:
        raise UserError(str(error)) from error
