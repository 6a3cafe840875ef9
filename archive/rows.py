"""Conversion of records to rows of the archive's tables and back. Errors name rows that are not valid records."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from archive import plain
from archive.kernel import Kernel, Proposal
from archive.records import (
    Check,
    Conditions,
    Confirmed,
    DeviceInfo,
    Envelope,
    Evaluation,
    Leg,
    Measurement,
    Merged,
    Outcome,
    Profile,
    Resources,
    Standard,
    Traits,
    content_id,
    device_fields,
)
from archive.runs import AskedQuestion, Budget, Cost, Question, Run
from archive.soundness import LAST_MOMENT, UnsoundError, check
from archive.summaries import (
    EvaluationSummary,
    KernelSummary,
    ProposalSummary,
    RankedTimes,
    Skips,
    is_sound,
    only_id,
    summary,
    with_code,
    without_code,
)

if TYPE_CHECKING:
    from archive.store import Record

Row = tuple[Any, ...]
T = TypeVar("T")


class DamagedError(Exception):
    """Raised when a row of the archive is damaged. The message names the row and its table, and says what is wrong."""


def rows(record: "Record") -> Iterator[tuple[str, Row]]:
    """Yield the rows of a record, each with its table; the record's own row comes first."""
    match record:
        case Kernel():
            yield "kernels", (record.id, record.op, record.text)
            yield "kernel_summaries", (None, record.id, record.op, record.family, record.outline)
        case Run() | Leg() | Merged():
            yield _small_row(record)
        case Proposal():
            yield "proposals", _proposal_row(record)
            yield from (("children", (parent, record.id)) for parent in record.parents)
            if record.kernel:
                yield from rows(record.kernel)
            if record.question:
                yield from _question_rows(record.id, record.op, record.question)
        case AskedQuestion():
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
    device_id = content_id(device_fields(evaluation.device))
    deterministic = None if evaluation.deterministic is None else int(evaluation.deterministic)
    yield "evaluations", (
        evaluation.id, evaluation.kernel_id, evaluation.op, device_id, str(evaluation.outcome), evaluation.log,
        json.dumps(evaluation.skipped), deterministic, json.dumps([astuple(r) for r in evaluation.resources]),
        evaluation.seed, evaluation.seconds, evaluation.created, json.dumps([astuple(c) for c in evaluation.checks]),
        json.dumps(asdict(evaluation.conditions)) if evaluation.conditions else None,
        json.dumps(asdict(evaluation.confirmed)) if evaluation.confirmed else None,
        json.dumps(asdict(evaluation.traits)) if evaluation.traits else None,
        json.dumps(evaluation.envelope.fields()) if evaluation.envelope else None, evaluation.run,
    )  # fmt: skip
    yield "devices", (device_id, *(device | {"tflops": json.dumps(device["tflops"])}).values())
    for measurement in evaluation.measurements:
        yield "measurements", (evaluation.id, *astuple(measurement))
    yield "evaluation_summaries", _summary_row(summary(evaluation), evaluation.run)


def _summary_row(found: EvaluationSummary, run: str) -> Row:
    return (
        None, found.id, found.kernel_id, found.op, found.device, str(found.outcome), found.created, found.seconds,
        int(found.confirmed), 0, found.code, with_code(found.traits_json, found.code), found.log, found.speedup,
        found.workloads, found.times, run,
    )  # fmt: skip


def kernel(row: Row) -> Kernel:
    """Return a kernel without reading its plan. If the text does not match the id, the row is damaged."""
    with _row("kernels", row[0]):
        kernel = Kernel(_text(row[1]))
        if kernel.id != row[0]:
            raise UnsoundError(f"its text has the id {kernel.id}")
        return kernel


def kernel_summary_in(row: Row) -> KernelSummary:
    try:
        return KernelSummary(row[0], *map(sys.intern, row[1:]))
    # written out for speed, because an op may have tens of thousands of kernels
    except (ValueError, TypeError) as error:
        raise _damage("kernel_summaries", row[1], error) from error


def proposal_summary(row: Row) -> ProposalSummary:
    """Return a summary in which repeated strings and zeros are shared objects: an op may have tens of thousands."""
    with _row("proposals", row[1]):
        number, proposal_id, op, operator, proposer, kernel_id, parents, run, *others = row
        others[5], others[8] = others[5] or 0.0, others[8] or 0.0  # seconds and dollars
        op, operator, proposer, kernel_id, run = map(sys.intern, (op, operator, proposer, kernel_id, run))
        one = only_id(parents) if isinstance(parents, str) else ""
        made_from = (sys.intern(one),) if one else tuple(map(sys.intern, _list("parents", parents)))
        return ProposalSummary(number, proposal_id, op, operator, proposer, kernel_id, made_from, run, *others)


OUTCOMES = {str(outcome): outcome for outcome in Outcome}


def evaluation_summary(row: Row) -> EvaluationSummary:
    """Return a summary whose repeated strings are interned."""
    try:
        if not (type(row[6]) is float and 0 <= row[6] < LAST_MOMENT and type(row[7]) is float):
            raise UnsoundError(f"created must be a time in seconds since 1970, not {row[6]!r}")
        if row[5] not in OUTCOMES:
            raise UnsoundError(f"{row[5]!r} is not a valid Outcome")
        if not is_sound(row[13], row[14]):
            raise UnsoundError("its times do not match its workloads")
        kernel_id, op, device, workloads = map(sys.intern, (row[2], row[3], row[4], row[13]))
        return EvaluationSummary._make((
            *row[:2], kernel_id, op, device, OUTCOMES[row[5]], *row[6:8], row[8] == 1, row[9],
            sys.intern(without_code(row[10])), row[11], row[12] or 0.0, workloads, row[14],
        ))  # fmt: skip
    except (ValueError, TypeError, RecursionError) as error:
        raise _damage("evaluation_summaries", row[1], error) from error


def ranked_times(row: Row) -> RankedTimes:
    if not is_sound(row[6], row[7]):
        raise _damage("evaluation_summaries", row[0], UnsoundError("its times do not match its workloads"))
    # `_make` takes twice as long, and an op may have tens of thousands of summaries
    return tuple.__new__(RankedTimes, row)


def skips(row: Row) -> Skips:
    with _row("evaluations", row[0]):
        return Skips(row[0], tuple(str(skipped).partition(": ")[0] for skipped in _list("skipped", row[1])))


def checked(table: str, row_id: object, record: T) -> T:
    with _row(table, row_id):
        check(record)
    return record


def proposal(row: Row) -> Proposal:
    with _row("proposals", row[0]):
        kernel_id, text = row[10:12]
        if kernel_id and text is None:
            raise UnsoundError(f"its kernel {kernel_id} is missing")
        op, operator, proposer, parents, run, reply, failure, created, call = row[1:10]
        record = Proposal(
            op, operator, proposer, kernel((kernel_id, text)) if text is not None else None,
            tuple(_list("parents", parents)), run, reply, failure, Cost(*row[12:]), created, call,
        )  # fmt: skip
        check(record)
        return record


def texts_of(row: Row) -> list[str]:
    """Return the ids of a question's texts."""
    with _row("questions", row[0]):
        return [text for _, text in (_row_of("messages", 2, message) for message in _list("messages", row[5]))]


def asked_question(row: Row, texts: Mapping[str, str]) -> AskedQuestion:
    with _row("questions", row[0]):
        messages = [_row_of("messages", 2, message) for message in _list("messages", row[5])]
        if missing := [text for _, text in messages if text not in texts]:
            raise UnsoundError(f"its text {missing[0]} is missing")
        question = Question(row[2], row[3], row[4], tuple((role, texts[text]) for role, text in messages))
        record = AskedQuestion(row[0], row[1], question)
        check(record)
        return record


def run(row: Row) -> Run:
    with _row("runs", row[0]):
        found = replace(
            Run(*row[:6]),
            strategy=row[6],
            budget=_written(Budget, "budget", row[7]),
            campaign=row[8],
            words=tuple(_list("words", row[9])),
        )
        check(found)
        return found


TFLOPS = 1 + [field.name for field in fields(DeviceInfo)].index("tflops")  # column of `devices`, after the id


def device(row: Row) -> DeviceInfo:
    with _row("devices", row[0]):
        tflops = tuple(_row_of("tflops", 2, pair) for pair in _list("tflops", row[TFLOPS]))
        info = replace(DeviceInfo(*row[1:]), tflops=tflops)
        check(info)
        return info


def evaluation(row: Row, devices: Mapping[str, DeviceInfo], measurements: list[Measurement]) -> Evaluation:
    with _row("evaluations", row[0]):
        if row[3] not in devices:
            raise UnsoundError(f"its device {row[3]} is missing")
        found = Evaluation(
            kernel_id=row[1], op=row[2], device=devices[row[3]], outcome=Outcome(row[4]), log=row[5],
            measurements=tuple(measurements), skipped=tuple(_list("skipped", row[6])),
            deterministic={0: False, 1: True}.get(row[7], row[7]),
            resources=tuple(Resources(*_row_of("resources", 4, spent)) for spent in _list("resources", row[8])),
            seed=row[9], seconds=row[10], created=row[11],
            checks=tuple(map(_check_of, _list("checks", row[12]))),
            conditions=_written(Conditions, "conditions", row[13]) if row[13] else None,
            confirmed=_written(Confirmed, "confirmed", row[14]) if row[14] else None,
            traits=_written(Traits, "traits", row[15]) if row[15] else None,
            envelope=_written(Envelope, "envelope", row[16]) if row[16] else None, run=row[17],
        )  # fmt: skip
        check(found)
        return found


def written_whole(kind: type[T], table: str, row_id: object, text: str) -> T:
    with _row(table, row_id):
        record = _written(kind, table.removesuffix("s"), text)
        check(record)
        return record


@contextmanager
def _row(table: str, row_id: object) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, RecursionError) as error:
        raise _damage(table, row_id, error) from error


def _damage(table: str, row_id: object, error: Exception) -> DamagedError:
    return DamagedError(f"row {str(row_id)[:40]} of its table `{table}`: {error}")


def _check_of(values: Any) -> Check:
    """Return a check whose strings are interned, because most of them repeat."""
    words_and_errors = (sys.intern(value) if type(value) is str else value for value in _row_of("checks", 6, values))
    return Check(*words_and_errors)  # type: ignore[arg-type]  # checked with the whole evaluation


def _written(kind: type[T], column: str, text: Any) -> T:
    """Return a record that a column holds as JSON."""
    try:
        return plain.record(kind, json.loads(_text(text)))
    except (ValueError, TypeError, AttributeError) as error:
        raise UnsoundError(f"`{column}` is not a valid {kind.__name__}: {error}") from error


def _list(column: str, text: Any) -> list[Any]:
    try:
        value = json.loads(_text(text))
    except ValueError as error:
        raise UnsoundError(f"`{column}` is not JSON: {error}") from error
    if not isinstance(value, list):
        raise UnsoundError(f"`{column}` is not a list")
    return value


def _row_of(column: str, length: int, value: Any) -> Row:
    if not isinstance(value, list) or len(value) != length:
        raise UnsoundError(f"`{column}` must hold lists of {length} values")
    return tuple(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnsoundError(f"it holds {type(value).__name__} instead of text")
    return value
