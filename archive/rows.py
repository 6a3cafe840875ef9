"""Records as rows of the archive's tables, and back. A row that no version can have written is an error."""

import json
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from functools import lru_cache
from typing import Any, TypeVar

from archive import kernel as genome
from archive import plain
from archive.kernel import Kernel
from archive.proposals import AskedQuestion, Budget, Cost, Leg, Proposal, Question, Run
from archive.records import (
    Check,
    Conditions,
    Confirmed,
    DeviceInfo,
    Evaluation,
    Measurement,
    Merged,
    Outcome,
    Profile,
    Resources,
    Standard,
    Traits,
    content_id,
)
from archive.soundness import UnsoundError, check

Row = tuple[Any, ...]
Record = Kernel | Proposal | AskedQuestion | Evaluation | Merged | Profile | Standard | Run | Leg


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


READ_AT_ONCE = 500  # some builds of SQLite take no more than 999 values in one statement
T = TypeVar("T")


class DamagedError(Exception):
    """A row that is not what it should be: which, of which table, and why."""


@contextmanager
def _row(table: str, row_id: object) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"row {str(row_id)[:40]} of its table `{table}`: {error}") from error


def kernels(connection: sqlite3.Connection, op: str) -> list[Kernel]:
    found = connection.execute("SELECT id, text FROM kernels WHERE op = ? OR ? = '' ORDER BY rowid", (op, op))
    return [_parsed(row_id, text) for row_id, text in found]


def runs(connection: sqlite3.Connection, op: str) -> list[Run]:
    found = connection.execute("SELECT * FROM runs WHERE op = ? OR ? = '' ORDER BY created, rowid", (op, op))
    return [_run(row) for row in found]


def legs(connection: sqlite3.Connection, op: str) -> list[Leg]:
    found = connection.execute(
        """SELECT l.id, l.run, started, max(ended) FROM legs l LEFT JOIN runs r ON r.id = l.run
           WHERE r.op = ? OR ? = '' GROUP BY l.run, started ORDER BY started""",
        (op, op),
    )
    return [_checked("legs", row[0], Leg(*row[1:])) for row in found]


def merged(connection: sqlite3.Connection, op: str) -> list[Merged]:
    found = connection.execute("SELECT * FROM merged WHERE op = ? OR ? = '' ORDER BY rowid", (op, op))
    return [_checked("merged", row[0], Merged(*row)) for row in found]


def profiles(connection: sqlite3.Connection, op: str) -> list[Profile]:
    found = connection.execute(
        "SELECT id, profile FROM profiles WHERE op = ? OR ? = '' ORDER BY created, rowid", (op, op)
    )
    return [_written_whole(Profile, "profiles", *row) for row in found]


def standards(connection: sqlite3.Connection, op: str) -> list[Standard]:
    found = connection.execute(
        "SELECT id, standard FROM standards WHERE op = ? OR ? = '' ORDER BY created, rowid", (op, op)
    )
    return [_written_whole(Standard, "standards", *row) for row in found]


def asked(connection: sqlite3.Connection, op: str) -> list[AskedQuestion]:
    """In the order in which their answers came."""
    found: list[Row] = connection.execute(
        """SELECT q.proposal_id, q.op, q.model, q.endpoint, q.parameters, q.messages
           FROM questions q LEFT JOIN proposals p ON p.id = q.proposal_id
           WHERE q.op = ? OR ? = '' ORDER BY p.created, p.rowid, q.rowid""",
        (op, op),
    ).fetchall()
    texts = dict(connection.execute("SELECT id, text FROM texts")) if found else {}
    return [_asked(row, texts) for row in found]


def proposals(connection: sqlite3.Connection, op: str) -> list[Proposal]:
    found = connection.execute(
        """SELECT p.id, p.op, operator, proposer, parents, run, reply, failure, created, call, kernel_id, k.text,
                  prompt_tokens, completion_tokens, seconds, cached_tokens, reasoning_tokens, usd
           FROM proposals p LEFT JOIN kernels k ON k.id = p.kernel_id
           WHERE p.op = ? OR ? = '' ORDER BY created, p.rowid""",
        (op, op),
    )
    return [_proposal(row) for row in found]


def evaluations(connection: sqlite3.Connection, op: str, known: dict[str, Evaluation]) -> list[Evaluation]:
    """Only those that are not known yet are read: a run asks for all of them again in every generation."""
    found = connection.execute("SELECT id FROM evaluations WHERE op = ? OR ? = '' ORDER BY created, rowid", (op, op))
    ids = [evaluation_id for (evaluation_id,) in found]
    unknown = [evaluation_id for evaluation_id in ids if evaluation_id not in known]
    devices = {row[0]: _device(row) for row in connection.execute("SELECT * FROM devices")} if unknown else {}
    for start in range(0, len(unknown), READ_AT_ONCE):
        known.update(_read(connection, unknown[start : start + READ_AT_ONCE], devices))
    return [known[evaluation_id] for evaluation_id in ids]


def _read(
    connection: sqlite3.Connection, ids: list[str], devices: Mapping[str, DeviceInfo]
) -> Iterator[tuple[str, Evaluation]]:
    marks = ", ".join("?" * len(ids))
    measurements = defaultdict[str, list[Measurement]](list)
    for evaluation_id, *values in connection.execute(
        f"SELECT * FROM measurements WHERE evaluation_id IN ({marks}) ORDER BY rowid",  # noqa: S608
        ids,
    ):
        measurements[evaluation_id].append(Measurement(*values))
    for row in connection.execute(f"SELECT * FROM evaluations WHERE id IN ({marks})", ids):  # noqa: S608
        yield row[0], _evaluation(row, devices, measurements[row[0]])


def _checked(table: str, row_id: object, record: T) -> T:
    with _row(table, row_id):
        check(record)
    return record


@lru_cache(maxsize=100_000)
def _parsed(row_id: str, text: str) -> Kernel:
    """A run asks for the same kernels again in every generation, and a text never changes what it says."""
    with _row("kernels", row_id):
        return genome.archived(_text(text))


def _proposal(row: Row) -> Proposal:
    with _row("proposals", row[0]):
        kernel_id, text = row[10:12]
        if kernel_id and text is None:
            raise UnsoundError(f"its kernel {kernel_id} is missing")
        op, operator, proposer, parents, run, reply, failure, created, call = row[1:10]
        record = Proposal(
            op, operator, proposer, _parsed(kernel_id, text) if text is not None else None,
            tuple(_list("parents", parents)), run, reply, failure, Cost(*row[12:]), created, call,
        )  # fmt: skip
        check(record)
        return record


def _asked(row: Row, texts: Mapping[str, str]) -> AskedQuestion:
    with _row("questions", row[0]):
        messages = [_row_of("messages", 2, message) for message in _list("messages", row[5])]
        if missing := [text for _, text in messages if text not in texts]:
            raise UnsoundError(f"its text {missing[0]} is missing")
        question = Question(row[2], row[3], row[4], tuple((role, texts[text]) for role, text in messages))
        record = AskedQuestion(row[0], row[1], question)
        check(record)
        return record


def _run(row: Row) -> Run:
    with _row("runs", row[0]):
        run = replace(
            Run(*row[:6]),
            strategy=row[6],
            budget=_written(Budget, "budget", row[7]),
            campaign=row[8],
            words=tuple(_list("words", row[9])),
        )
        check(run)
        return run


def _device(row: Row) -> DeviceInfo:
    with _row("devices", row[0]):
        tflops = tuple(_row_of("tflops", 2, pair) for pair in _list("tflops", row[-1]))
        device = replace(DeviceInfo(*row[1:-1]), tflops=tflops)
        check(device)
        return device


def _evaluation(row: Row, devices: Mapping[str, DeviceInfo], measurements: list[Measurement]) -> Evaluation:
    with _row("evaluations", row[0]):
        if row[3] not in devices:
            raise UnsoundError(f"its device {row[3]} is missing")
        evaluation = Evaluation(
            kernel_id=row[1], op=row[2], device=devices[row[3]], outcome=Outcome(row[4]), log=row[5],
            measurements=tuple(measurements), skipped=tuple(_list("skipped", row[6])),
            deterministic={0: False, 1: True}.get(row[7], row[7]),
            resources=tuple(Resources(*_row_of("resources", 4, spent)) for spent in _list("resources", row[8])),
            seed=row[9], seconds=row[10], created=row[11],
            checks=tuple(map(_judged, _list("checks", row[12]))),
            conditions=_written(Conditions, "conditions", row[13]) if row[13] else None,
            confirmed=_written(Confirmed, "confirmed", row[14]) if row[14] else None,
            traits=_written(Traits, "traits", row[15]) if row[15] else None,
        )  # fmt: skip
        check(evaluation)
        return evaluation


def _judged(values: Any) -> Check:
    """The same few words stand in all of them, over and over."""
    words_and_errors = (sys.intern(value) if type(value) is str else value for value in _row_of("checks", 6, values))
    return Check(*words_and_errors)  # type: ignore[arg-type]  # which is checked with the whole evaluation


def _written_whole(kind: type[T], table: str, row_id: object, text: str) -> T:
    with _row(table, row_id):
        record = _written(kind, table.removesuffix("s"), text)
        check(record)
        return record


def _written(kind: type[T], column: str, text: Any) -> T:
    """A record that a column holds as JSON."""
    try:
        return plain.record(kind, json.loads(_text(text)))
    except (ValueError, TypeError, AttributeError) as error:
        raise UnsoundError(f"`{column}` is no {kind.__name__}: {error}") from error


def _list(column: str, text: Any) -> list[Any]:
    try:
        value = json.loads(_text(text))
    except ValueError as error:
        raise UnsoundError(f"`{column}` is no JSON: {error}") from error
    if not isinstance(value, list):
        raise UnsoundError(f"`{column}` is no list")
    return value


def _row_of(column: str, length: int, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) != length:
        raise UnsoundError(f"`{column}` holds something else than lists of {length}")
    return tuple(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnsoundError(f"it holds {type(value).__name__} where text belongs")
    return value
