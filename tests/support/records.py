"""Records for the archives of tests: kernels, proposals and evaluations on made-up devices."""

from dataclasses import replace

from archive.kernel import Kernel, Proposal, parse
from archive.records import (
    Check,
    Conditions,
    Confirmed,
    DeviceInfo,
    Duel,
    Evaluation,
    Measurement,
    Outcome,
    Resources,
    Sanitized,
)
from archive.summaries import BriefEvaluation, BriefProposal, ProposalSummary

GPU = DeviceInfo("cuda", "Some GPU", "sm_90a", 132, 232448, copy_gb_s=4000.0, tflops=(("float32", 50.0),))
CPU = DeviceInfo("emulated", "Some CPU", "sm_90a", 4, 232448)


def kernel(number: int = 0, op: str = "softmax") -> Kernel:
    """Return the kernel with this number; different numbers give different ids."""
    return parse(
        f'/*---\nop = "{op}"\nnote = "number {number}"\n[knobs]\nN = [1, 2, 3]\n[[launch]]\nentry = "f"\n'
        f'grid = [1]\nblock = [32]\nargs = ["x", "out"]\n---*/\nextern "C" __global__ void f() {{}}\n'
    )


def proposal(of: Kernel, *parents: str, operator: str = "knobs", run: str = "run") -> Proposal:
    return Proposal(of.op, operator, "offline", of, parents=parents, run=run, created=1.5)


def proposal_summary(of: Proposal, number: int = 0) -> ProposalSummary:
    cost = of.cost
    return ProposalSummary(
        number, of.id, of.op, of.operator, of.proposer, of.kernel_id, of.parents, of.run, of.failure, of.created,
        of.call, cost.prompt_tokens, cost.completion_tokens, cost.seconds, cost.cached_tokens, cost.reasoning_tokens,
        cost.usd,
    )  # fmt: skip


def brief_proposal(of: Proposal) -> BriefProposal:
    """Return the summary that the archive gives when a query needs only a proposal's cost."""
    cost = of.cost
    return BriefProposal(of.kernel_id, of.run, of.created, cost.tokens, cost.usd, cost.seconds)


def brief_evaluation(of: Evaluation) -> BriefEvaluation:
    """Return the summary that the archive gives when a query needs only an evaluation's time and best speedup."""
    best = max((measurement.speedup for measurement in of.measurements), default=0.0)
    return BriefEvaluation(of.kernel_id, of.created, of.seconds, of.passed, best, of.run)


def failed_reply(text: str = "I cannot.") -> Proposal:
    return Proposal("softmax", "draft", "model", None, reply=text, failure="no kernel in the reply", created=2.5)


def measurement(workload: str, median_us: float, eager_us: float = 100.0) -> Measurement:
    return Measurement(workload, median_us, median_us * 0.9, median_us * 1.1, 9, eager_us, floor_us=10.0)


def passed(kernel_id: str, device: DeviceInfo = GPU, created: float = 1.0, **times: float) -> Evaluation:
    measurements = tuple(measurement(workload, median_us) for workload, median_us in times.items())
    return Evaluation(kernel_id, "softmax", device, Outcome.PASSED, "", measurements, created=created)


def failed(kernel_id: str, outcome: Outcome = Outcome.WRONG, created: float = 1.0) -> Evaluation:
    return Evaluation(kernel_id, "softmax", GPU, outcome, "it is wrong", created=created)


def duel(workload: str, speedup: float, width: float = 0.02) -> Duel:
    return Duel(workload, "compile", speedup, speedup * (1 - width), speedup * (1 + width), noise=0.01)


def confirmed(kernel_id: str, device: DeviceInfo = GPU, created: float = 1.0, **times: float) -> Evaluation:
    """Return a confirmed evaluation, with duels and clean sanitizer reports."""
    evaluation = passed(kernel_id, device, created, **times)
    duels = tuple(duel(measurement.workload, measurement.speedup) for measurement in evaluation.measurements)
    clean = tuple(Sanitized(tool, 0) for tool in ("memcheck", "racecheck", "initcheck", "synccheck"))
    return replace(evaluation, confirmed=Confirmed(("rows=7 cols=1023 float32",), duels, clean))


def checked(evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with two checks per workload, and with conditions and resources."""
    checks = [
        Check(measurement.workload, values, "out", error, 1e-3, 4 * error / 1e-2)
        for measurement in evaluation.measurements
        for values, error in (("normal", 1e-3), ("large", 1.5e-3))
    ]
    return replace(
        evaluation,
        measurements=tuple(replace(m, compile_us=80.0, autotune_us=75.0) for m in evaluation.measurements),
        checks=(*checks, Check("rows=1 cols=31 float32", "normal", "out", 5e-4, 1e-3, 0.25)),
        conditions=Conditions(1980, 3201, 41, 512),
        deterministic=True,
        resources=(Resources("f", 40, 2048, 0),),
    )
