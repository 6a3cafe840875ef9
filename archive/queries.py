"""Queries of an archive: selection, filters and order of each kind of record."""

import json
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from archive import rows
from archive.kernel import Kernel, Proposal
from archive.records import SHIPPED, DeviceInfo, Evaluation, Leg, Measurement, Merged, Profile, Standard
from archive.rows import Row
from archive.runs import AskedQuestion, Run
from archive.store import Filters, uncollected
from archive.summaries import (
    BriefEvaluation,
    BriefProposal,
    EvaluationSummary,
    Judged,
    KernelId,
    KernelSummary,
    Origin,
    ProposalSummary,
    RankedTimes,
    Skips,
)

READ_AT_ONCE = 500  # number of evaluations whose measurements are in memory at the same time
LAST_CHARACTER = chr(0x10FFFF)


@dataclass(frozen=True)
class RecordQuery:
    """The query for records of one kind: the SELECT statement, the order, and the condition that each filter adds."""

    select: str
    order: str
    conditions: Mapping[str, str]
    read: Callable[[sqlite3.Connection, Iterable[Row]], Iterable[Any]]


def find(connection: sqlite3.Connection, kind: type, op: str, filters: Filters) -> list[Any]:
    """Return the records of a kind that pass every filter, oldest first."""
    source = SOURCES[kind]
    where, values = _where(source, kind, op, filters)
    orders = {
        "fastest": "ORDER BY speedup DESC, kernel_id LIMIT",
        "newest": "ORDER BY number DESC LIMIT",
        "oldest": "ORDER BY number LIMIT",
    }
    order = next((f"{order} {filters[name]:d}" for name, order in orders.items() if name in filters), source.order)  # type: ignore[literal-required]
    with uncollected():
        found = connection.execute(f"{source.select} {where} {order}", values)
        return list(source.read(connection, found))


def count(connection: sqlite3.Connection, kind: type, by: str, op: str, filters: Filters) -> dict[str, int]:
    """Return the number of records that pass every filter, by the values of a column."""
    source = SOURCES[kind]
    table = source.select.partition(" FROM ")[2].split()[0]
    where, values = _where(source, kind, op, filters)
    if by not in COUNTED_BY:
        raise TypeError(f"records are counted by {', '.join(COUNTED_BY)}, not by {by}")
    alias = source.select.partition(" FROM ")[2].split()[1:2] or [""]
    named = f"{table} {alias[0]}" if len(alias[0]) == 1 else table
    return dict(connection.execute(f"SELECT {by}, count(*) FROM {named} {where} GROUP BY {by}", values))  # noqa: S608


def ops(connection: sqlite3.Connection, kind: type) -> list[str]:
    """Return the ops with records of a kind, sorted.

    The query steps from op to op, because counting would read the whole index.
    """
    table = SOURCES[kind].select.partition(" FROM ")[2].split()[0]
    found = connection.execute(
        f"""WITH RECURSIVE found (op) AS (
                SELECT min(op) FROM {table}
                UNION ALL SELECT (SELECT min(op) FROM {table} t WHERE t.op > found.op) FROM found WHERE op IS NOT NULL)
            SELECT op FROM found WHERE op IS NOT NULL"""  # noqa: S608 - a constant
    )
    return [str(op) for (op,) in found]


def _where(source: RecordQuery, kind: type, op: str, filters: Filters) -> tuple[str, list[object]]:
    given: dict[str, Any] = {**({"op": op} if op else {}), **filters}
    conditions, values = [], list[object]()
    for name, value in given.items():
        if name not in source.conditions:
            raise TypeError(f"a {kind.__name__} cannot be found by `{name}`")
        condition = source.conditions[name]
        if not condition:
            continue
        if name == "prefix":
            values += [value, f"{value}{LAST_CHARACTER}"]
        elif name in OF_OP_AND_DEVICE:
            values += [op, filters.get("device", "")]
        elif GIVEN in condition:
            values.append(json.dumps(list(value)))
        else:
            values.append(value)
        if name == "op" and not NARROW.isdisjoint(given):
            condition = f"+{condition}"  # keeps SQLite from using the index by op, because an op has many records
        conditions.append(condition)
    return f"WHERE {' AND '.join(conditions)}" if conditions else "", values


def _evaluations(connection: sqlite3.Connection, found: Iterable[Row]) -> Iterator[Evaluation]:
    every = list(found)
    ids = json.dumps(list({row[3] for row in every}))
    devices = {
        row[0]: rows.device(row)
        for row in connection.execute(f"SELECT * FROM devices WHERE id {GIVEN}", [ids])  # noqa: S608
    }
    for start in range(0, len(every), READ_AT_ONCE):
        part = every[start : start + READ_AT_ONCE]
        measurements = defaultdict[str, list[Measurement]](list)
        for evaluation_id, *values in connection.execute(
            f"SELECT * FROM measurements WHERE evaluation_id {GIVEN} ORDER BY rowid",  # noqa: S608
            [json.dumps([row[0] for row in part])],
        ):
            measurements[evaluation_id].append(Measurement(*values))
        yield from (rows.evaluation(row, devices, measurements[row[0]]) for row in part)


def _questions(connection: sqlite3.Connection, found: Iterable[Row]) -> Iterator[AskedQuestion]:
    every = list(found)
    wanted = list({text_id for row in every for text_id in rows.texts_of(row)})
    texts = dict(connection.execute(f"SELECT id, text FROM texts WHERE id {GIVEN}", [json.dumps(wanted)]))  # noqa: S608
    return (rows.asked_question(row, texts) for row in every)


def _oldest_first(_connection: sqlite3.Connection, found: Iterable[Row]) -> list[EvaluationSummary]:
    """Return sorted summaries. They are sorted here because SQLite sorts rows with large columns slowly."""
    return sorted(map(rows.evaluation_summary, found), key=lambda one: (one.created, one.number))


def _in_order_of_time(connection: sqlite3.Connection, found: Iterable[Row]) -> list[BriefProposal]:
    """Return brief proposals by time, then by number. Two successive sorts take half the time of one sort by pairs."""
    in_order_of_numbers = sorted(_plain(BriefProposal)(connection, found), key=attrgetter("number"))
    return sorted(in_order_of_numbers, key=attrgetter("created"))


def _plain(kind: type[tuple[Any, ...]]) -> Callable[[sqlite3.Connection, Iterable[Row]], Iterator[Any]]:
    """Return a function that makes named tuples of whole rows.

    Their own `_make` takes twice as long, and an op may have 100,000 of them.
    """
    return _each(partial(tuple.__new__, kind))


def _shared(kind: type[tuple[Any, ...]]) -> Callable[[Row], Any]:
    """Return a function that makes named tuples. Their first field, the kernel id, is one object for all records."""
    return lambda row: tuple.__new__(kind, (sys.intern(row[0]), *row[1:]))


def _each(read: Callable[[Row], Any]) -> Callable[[sqlite3.Connection, Iterable[Row]], Iterator[Any]]:
    return lambda _, found: map(read, found)


def _whole(kind: type, table: str) -> Callable[[sqlite3.Connection, Iterable[Row]], Iterator[Any]]:
    return _each(lambda row: rows.written_whole(kind, table, *row))


def _by(*names: str, **columns: str) -> dict[str, str]:
    """Return the conditions of filters. A filter without a condition compares the column of its name."""
    equal = {name: f"{name} = ?" for name in names}
    return {**equal, **columns}


NARROW = frozenset({"ids", "prefix", "kernels", "parents"})  # filters that only few records pass
COUNTED_BY = ("op", "device", "outcome")
GIVEN = "IN (SELECT value FROM json_each(?))"  # any number of values, passed as JSON in one parameter
ID_IN, ID_PREFIX = f"id {GIVEN}", "id BETWEEN ? AND ?"
SHIPPED_IN = f"(run = '{SHIPPED}') = ?"
# lets SQLite use the index in the order of time, which lacks the columns that other queries need
IN_ORDER = "op = ? AND op <> ''"
OF_OP_AND_DEVICE = ("contending", "newest_timed")  # filters whose condition contains the op and the device once more
NEWEST_TIMED = """number IN (SELECT number FROM (SELECT number, max(created) FROM evaluation_summaries
    WHERE op = ? AND device = ? AND speedup > 0 GROUP BY workloads))"""
CONTENDING = "number IN (SELECT number FROM contenders WHERE op = ? AND device = ?)"
OF_PARENTS = f"p.id IN (SELECT proposal_id FROM children WHERE parent {GIVEN})"  # noqa: S608 - constants only

SOURCES: dict[type, RecordQuery] = {
    Kernel: RecordQuery(
        "SELECT id, text FROM kernels",
        "ORDER BY rowid",
        _by("op", ids=ID_IN, prefix=ID_PREFIX),
        _each(rows.kernel),
    ),
    KernelSummary: RecordQuery(
        "SELECT number, id, op, family, outline FROM kernel_summaries",
        "ORDER BY number",
        _by("op", ids=ID_IN, prefix=ID_PREFIX, after="number > ?", oldest=""),
        _each(rows.kernel_summary_in),
    ),
    KernelId: RecordQuery("SELECT id FROM kernel_summaries", "ORDER BY number", _by("op"), _each(_shared(KernelId))),
    Proposal: RecordQuery(
        """SELECT p.id, p.op, operator, proposer, parents, run, reply, failure, created, call, kernel_id, k.text,
                  prompt_tokens, completion_tokens, seconds, cached_tokens, reasoning_tokens, usd
           FROM proposals p LEFT JOIN kernels k ON k.id = p.kernel_id""",
        "ORDER BY created, p.rowid",
        _by("run", op="p.op = ?", ids=f"p.id {GIVEN}", kernels=f"kernel_id {GIVEN}", parents=OF_PARENTS,
            prefix="p.id BETWEEN ? AND ?"),
        _each(rows.proposal),
    ),
    ProposalSummary: RecordQuery(
        """SELECT p.rowid, id, op, operator, proposer, kernel_id, parents, run, failure, created, call, prompt_tokens,
                  completion_tokens, seconds, cached_tokens, reasoning_tokens, usd
           FROM proposals p""",
        "ORDER BY created, p.rowid",
        _by("op", "run", "proposer", ids=ID_IN, prefix=ID_PREFIX, kernels=f"kernel_id {GIVEN}", parents=OF_PARENTS,
            after="p.rowid > ?", since="created >= ?"),
        _each(rows.proposal_summary),
    ),
    Origin: RecordQuery(
        "SELECT kernel_id, parents FROM proposals p", "ORDER BY created, p.rowid", _by("op"), _plain(Origin),
    ),
    BriefProposal: RecordQuery(
        "SELECT kernel_id, run, created, prompt_tokens + completion_tokens, usd, seconds, p.rowid FROM proposals p",
        "ORDER BY created",  # the order of the index, so that only equal times must be sorted
        _by("run", op=IN_ORDER),
        _in_order_of_time,
    ),
    BriefEvaluation: RecordQuery(
        "SELECT kernel_id, created, seconds, outcome = 'passed', speedup, run FROM evaluation_summaries",
        "ORDER BY created, number",
        _by("device", op=IN_ORDER),
        _plain(BriefEvaluation),
    ),
    Judged: RecordQuery(
        "SELECT kernel_id, created FROM evaluation_summaries", "ORDER BY created, number",
        _by("device", op=IN_ORDER), _each(_shared(Judged)),
    ),
    AskedQuestion: RecordQuery(
        """SELECT q.proposal_id, q.op, q.model, q.endpoint, q.parameters, q.messages
           FROM questions q LEFT JOIN proposals p ON p.id = q.proposal_id""",
        "ORDER BY p.created, p.rowid, q.rowid",
        _by("run", op="q.op = ?", ids=f"q.proposal_id {GIVEN}"),
        _questions,
    ),
    Evaluation: RecordQuery(
        "SELECT * FROM evaluations",
        "ORDER BY created, rowid",
        _by("op", ids=ID_IN, kernels=f"kernel_id {GIVEN}", shipped=SHIPPED_IN),
        _evaluations,
    ),
    EvaluationSummary: RecordQuery(
        """SELECT number, id, kernel_id, op, device, outcome, created, seconds, confirmed, code, traits, log, speedup,
                  workloads, times
           FROM evaluation_summaries""",
        "",
        _by("op", "device", "outcome", "in_force", "confirmed", "code", fastest="", newest="", oldest="",
            measured="(speedup > 0) = ?", newest_timed=NEWEST_TIMED,
            passed="(outcome = 'passed') = ?", shipped=SHIPPED_IN, ids=ID_IN, kernels=f"kernel_id {GIVEN}",
            after="number > ?"),
        _oldest_first,
    ),
    RankedTimes: RecordQuery(
        # Rows are read in the order in which they were added, which is fast and determines the order of equal times.
        """SELECT id, kernel_id, device, created, confirmed, traits, workloads, times
           FROM evaluation_summaries INDEXED BY evaluation_summaries_by_op""",
        "",
        _by("device", op="op = ? AND in_force = 1 AND outcome = 'passed'", contending=CONTENDING),
        _each(rows.ranked_times),
    ),
    Skips: RecordQuery(
        "SELECT id, skipped FROM evaluations", "ORDER BY rowid", _by("op", ids=ID_IN), _each(rows.skips)
    ),
    DeviceInfo: RecordQuery(
        """SELECT d.* FROM devices d JOIN (SELECT device_id, max(created) AS last FROM evaluations""",
        "GROUP BY device_id) ON device_id = d.id ORDER BY last",
        _by("op"),
        _each(rows.device),
    ),
    Run: RecordQuery("SELECT * FROM runs", "ORDER BY created, rowid", _by("op", ids=ID_IN, prefix=ID_PREFIX),
                _each(rows.run)),
    Leg: RecordQuery(
        "SELECT l.id, l.run, started, max(ended) FROM legs l LEFT JOIN runs r ON r.id = l.run",
        "GROUP BY l.run, started ORDER BY started",
        _by(op="r.op = ?", run="l.run = ?"),
        _each(lambda row: rows.checked("legs", row[0], Leg(*row[1:]))),
    ),
    Profile: RecordQuery(
        "SELECT id, profile FROM profiles", "ORDER BY created, rowid",
        _by("op", kernels=f"json_extract(profile, '$.kernel_id') {GIVEN}"), _whole(Profile, "profiles"),
    ),
    Standard: RecordQuery(
        "SELECT id, standard FROM standards", "ORDER BY created, rowid", _by("op"), _whole(Standard, "standards"),
    ),
    Merged: RecordQuery(
        "SELECT * FROM merged", "ORDER BY rowid", _by("op", ids=f"evaluation_id {GIVEN}"),
        _each(lambda row: rows.checked("merged", row[0], Merged(*row))),
    ),
}  # fmt: skip
