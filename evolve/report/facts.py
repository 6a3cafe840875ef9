"""Facts: the content of the tables as plain values for --json."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from archive.kernel import Kernel, Proposal
from archive.records import Duel, Evaluation, Measurement
from archive.summaries import ProposalSummary
from evolve.devices.choose import policy_of
from evolve.report.basis import PYTORCH, Basis, known_basis
from evolve.report.kernels import KernelLine
from evolve.report.standing import Standing
from evolve.selection.population import Champion

Facts = dict[str, Any]


def of_standing(standing: Standing) -> Facts:
    return {
        "op": standing.op,
        "device": standing.device.key,
        "emulated": not policy_of(standing.device.kind).times_are_gpu_times,
        "champions": [
            {**of_champion(champion, standing.basis), "measured_elsewhere": champion.kernel_id in standing.elsewhere}
            for champion in standing.champions
        ],
        "population": [_of_survivor(evaluation, standing) for evaluation in standing.population],
        "outcomes": standing.outcomes,
        "pending": standing.pending,
        "replies_without_kernel": standing.unread,
    }


def of_unmeasured(op: str, kernels: Sequence[Kernel]) -> Facts:
    """Return the facts on an op that no device has evaluated, with the same keys as for a standing."""
    return {
        "op": op, "device": None, "champions": [], "population": [], "outcomes": {}, "pending": 0,
        "replies_without_kernel": 0, "kernels": [of_kernel(kernel) for kernel in kernels],
    }  # fmt: skip


def of_champion(champion: Champion, basis: Basis = PYTORCH) -> Facts:
    return {
        "kernel": champion.kernel_id,
        **of_measurement(champion.measurement, basis),
        "confirmed": champion.confirmed is not None,
        "duel": of_duel(champion.duel) if champion.duel else None,
    }


def of_duel(duel: Duel) -> Facts:
    return {**asdict(duel), "won": duel.won}


def of_measurement(measurement: Measurement, basis: Basis = PYTORCH) -> Facts:
    """Return the record with its ratios. PyTorch's times and `speedup` are None where times are not GPU times."""
    pytorch = {} if basis.is_pytorch else dict.fromkeys(("eager_us", "compile_us", "autotune_us"))
    return {
        **asdict(measurement),
        **pytorch,
        "speedup": measurement.speedup if basis.is_pytorch else None,
        "over_first": None if basis.is_pytorch else basis.ratio(measurement),
        "share_of_light": measurement.share_of_light,
    }


def of_kernel(kernel: Kernel) -> Facts:
    return {"kernel": kernel.id, "op": kernel.op, "note": kernel.plan.note, "knobs": kernel.plan.settings}


def of_kernel_line(line: KernelLine) -> Facts:
    proposal = line.proposal
    return {
        "kernel": line.kernel_id,
        "op": line.op,
        "device": line.device.key,
        "outcome": line.outcome,
        "best": line.best,
        "mean": line.mean,
        "operator": proposal.operator if proposal else "",
        "proposer": proposal.proposer if proposal else "",
        "run": proposal.run if proposal else "",
        "created": line.created,
    }


def of_proposal(proposal: Proposal | ProposalSummary) -> Facts:
    return {
        "proposal": proposal.id,
        "op": proposal.op,
        "kernel": proposal.kernel_id or None,
        "operator": proposal.operator,
        "proposer": proposal.proposer,
        "parents": list(proposal.parents),
        "run": proposal.run,
        "failure": proposal.failure,
        "prompt_tokens": proposal.cost.prompt_tokens,
        "completion_tokens": proposal.cost.completion_tokens,
        "seconds": proposal.cost.seconds,
        "created": proposal.created,
    }


def of_evaluation(evaluation: Evaluation) -> Facts:
    """Return the whole record, with the device's key in place of the device."""
    confirmed = evaluation.confirmed
    duels = [of_duel(duel) for duel in confirmed.duels] if confirmed else []
    return {
        "evaluation": evaluation.id,
        "kernel": evaluation.kernel_id,
        **{name: value for name, value in asdict(evaluation).items() if name != "kernel_id"},
        "device": evaluation.device.key,
        "measurements": [
            of_measurement(measurement, known_basis(evaluation.device.kind)) for measurement in evaluation.measurements
        ],
        "confirmed": {**asdict(confirmed), "duels": duels} if confirmed else None,
    }


def _of_survivor(evaluation: Evaluation, standing: Standing) -> Facts:
    kernel, proposal = standing.kernels.get(evaluation.kernel_id), standing.proposals.get(evaluation.kernel_id)
    return {
        "kernel": evaluation.kernel_id,
        "mean_speedup": standing.basis.mean(evaluation) if standing.basis.is_pytorch else None,
        "mean_over_first": None if standing.basis.is_pytorch else standing.basis.mean(evaluation),
        "workloads": len(evaluation.measurements),
        "knobs": kernel.plan.settings if kernel else {},
        "note": kernel.plan.note if kernel else "",
        "operator": proposal.operator if proposal else "",
        "proposer": proposal.proposer if proposal else "",
        "parents": list(proposal.parents) if proposal else [],
        "children": standing.children.get(evaluation.kernel_id, 0),
        "measured_elsewhere": evaluation.shipped,
    }
