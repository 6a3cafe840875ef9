"""The part of an archive that a run uses: which kernels count, and which do not."""

from dataclasses import dataclass

from archive.records import SHIPPED, DeviceInfo, kind_in
from archive.store import Store
from archive.summaries import EvaluationSummary, Judged, ProposalSummary
from evolve.devices.choose import policy_of

EVOLVE, BEST_OF_N = "evolve", "best-of-n"
STRATEGIES = (EVOLVE, BEST_OF_N)


@dataclass(frozen=True)
class Scope:
    """The part of the archive that a run uses."""

    run: str = ""
    strategy: str = EVOLVE  # best-of-n, the control experiment, makes every request as if it were the first
    fresh: bool = False  # only kernels that this run itself has proposed
    excluded: frozenset[str] = frozenset()  # shipped kernels, which count only if another proposer proposes them

    @property
    def only_run(self) -> str:
        """The run whose own kernels are the only ones used, or an empty string."""
        return self.run if self.fresh else ""


EVERYTHING = Scope()


def unasked(store: Store, op: str, device: DeviceInfo) -> frozenset[str]:
    """Return the kernels that only ship with the package and have no verdict on the device."""
    shipped = {one.kernel_id for one in store.find(ProposalSummary, op, proposer=SHIPPED)}
    proposed = {one.kernel_id for one in store.find(ProposalSummary, op, kernels=shipped) if not one.shipped}
    judged = store.find(EvaluationSummary, op, device=device.key, kernels=shipped)
    return frozenset(shipped - proposed - {verdict.kernel_id for verdict in judged})


def judged_on_gpus(store: Store, op: str, device: DeviceInfo) -> frozenset[str]:
    """Return the kernels that GPUs have judged, for a device whose own verdicts say less; none for a GPU."""
    if policy_of(device.kind).times_are_gpu_times:
        return frozenset()
    keys = [key for key in store.count(EvaluationSummary, "device", op) if policy_of(kind_in(key)).times_are_gpu_times]
    return frozenset(kernel_id for key in keys for kernel_id, _ in store.find(Judged, op, device=key))
