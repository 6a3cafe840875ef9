"""The rows of the archive's tables that a record becomes. The first row of a record says whether it is new."""

import json
from collections.abc import Iterator
from dataclasses import asdict, astuple
from typing import Any

from archive.kernel import Kernel
from archive.proposals import Asked, Leg, Proposal, Question, Run
from archive.records import Evaluation, Merged, Profile, Standard, content_id

Row = tuple[Any, ...]
Record = Kernel | Proposal | Asked | Evaluation | Merged | Profile | Standard | Run | Leg


def rows(record: Record) -> Iterator[tuple[str, Row]]:
    """The rows a record becomes, by table."""
    match record:
        case Kernel():
            yield "kernels", (record.id, record.op, record.text)
        case Run() | Leg() | Merged():
            yield _small_row(record)
        case Proposal():
            yield "proposals", _proposal_row(record)
            if record.kernel:
                yield from rows(record.kernel)
            if record.question:
                yield from _question_rows(record.id, record.op, record.question)
        case Asked():
            yield from _question_rows(record.proposal_id, record.op, record.question)
        case Profile() | Standard():
            table = "profiles" if isinstance(record, Profile) else "standards"
            yield table, (record.id, record.op, json.dumps(asdict(record)), record.created)
        case Evaluation():
            yield from _evaluation_rows(record)


def _small_row(record: Run | Leg | Merged) -> tuple[str, Row]:
    match record:
        case Run():
            return "runs", _run_row(record)
        case Leg():
            return "legs", (record.id, record.run, record.started, record.ended)
        case Merged():
            return "merged", (record.id, record.op)


def _proposal_row(proposal: Proposal) -> Row:
    cost = proposal.cost
    return (
        proposal.id, proposal.op, proposal.operator, proposal.proposer, proposal.kernel_id,
        json.dumps(proposal.parents), proposal.run, proposal.reply, proposal.failure,
        cost.prompt_tokens, cost.completion_tokens, cost.seconds, proposal.created,
        cost.cached_tokens, cost.reasoning_tokens, cost.usd, proposal.call,
    )  # fmt: skip


def _run_row(run: Run) -> Row:
    return (
        run.id, run.op, run.device, run.proposer, run.seed, run.created, run.strategy,
        json.dumps(asdict(run.budget)), run.campaign, json.dumps(run.words),
    )  # fmt: skip


def _question_rows(proposal_id: str, op: str, question: Question) -> Iterator[tuple[str, Row]]:
    texts = {content_id(content): content for _, content in question.messages}
    messages = json.dumps([(role, content_id(content)) for role, content in question.messages])
    yield "questions", (proposal_id, op, question.model, question.endpoint, question.parameters, messages)
    for text in texts.items():
        yield "texts", text


def _evaluation_rows(evaluation: Evaluation) -> Iterator[tuple[str, Row]]:
    device = asdict(evaluation.device)
    device_id = content_id(device)
    deterministic = None if evaluation.deterministic is None else int(evaluation.deterministic)
    yield "evaluations", (
        evaluation.id, evaluation.kernel_id, evaluation.op, device_id, str(evaluation.outcome), evaluation.log,
        json.dumps(evaluation.skipped), deterministic, json.dumps([astuple(r) for r in evaluation.resources]),
        evaluation.seed, evaluation.seconds, evaluation.created, json.dumps([astuple(c) for c in evaluation.checks]),
        json.dumps(asdict(evaluation.conditions)) if evaluation.conditions else None,
        json.dumps(asdict(evaluation.confirmed)) if evaluation.confirmed else None,
        json.dumps(asdict(evaluation.traits)) if evaluation.traits else None,
    )  # fmt: skip
    yield "devices", (device_id, *list(device.values())[:-1], json.dumps(device["tflops"]))
    for measurement in evaluation.measurements:
        yield "measurements", (evaluation.id, *astuple(measurement))
