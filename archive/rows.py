"""Between records and the rows of the archive's tables. The first row of a record says whether it is new."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, astuple, replace
from functools import lru_cache
from typing import Any

from archive import kernel as genome
from archive.kernel import Kernel
from archive.records import (
    Cost,
    DeviceInfo,
    Evaluation,
    Measurement,
    Outcome,
    Proposal,
    Resources,
    Run,
    content_id,
)

Row = tuple[Any, ...]
Record = Kernel | Proposal | Evaluation | Run


def rows(record: Record) -> Iterator[tuple[str, Row]]:
    """The rows a record becomes, by table."""
    match record:
        case Kernel():
            yield "kernels", (record.id, record.op, record.text)
        case Run():
            yield "runs", astuple(record)
        case Proposal():
            yield "proposals", _proposal_row(record)
            if record.kernel:
                yield from rows(record.kernel)
        case Evaluation():
            yield from _evaluation_rows(record)


def _proposal_row(proposal: Proposal) -> Row:
    return (
        proposal.id, proposal.op, proposal.operator, proposal.proposer, proposal.kernel_id,
        json.dumps(proposal.parents), proposal.run, proposal.reply, proposal.failure,
        *astuple(proposal.cost), proposal.created,
    )  # fmt: skip


def _evaluation_rows(evaluation: Evaluation) -> Iterator[tuple[str, Row]]:
    device = asdict(evaluation.device)
    device_id = content_id(device)
    deterministic = None if evaluation.deterministic is None else int(evaluation.deterministic)
    yield "evaluations", (
        evaluation.id, evaluation.kernel_id, evaluation.op, device_id, str(evaluation.outcome), evaluation.log,
        json.dumps(evaluation.skipped), deterministic, json.dumps([astuple(r) for r in evaluation.resources]),
        evaluation.seed, evaluation.seconds, evaluation.created,
    )  # fmt: skip
    yield "devices", (device_id, *list(device.values())[:-1], json.dumps(device["tflops"]))
    for measurement in evaluation.measurements:
        yield "measurements", (evaluation.id, *astuple(measurement))


def kernels(connection: sqlite3.Connection, op: str) -> list[Kernel]:
    found = connection.execute("SELECT text FROM kernels WHERE op = ? OR ? = '' ORDER BY rowid", (op, op))
    return [_parsed(text) for (text,) in found]


def runs(connection: sqlite3.Connection, op: str) -> list[Run]:
    found = connection.execute("SELECT * FROM runs WHERE op = ? OR ? = '' ORDER BY created, rowid", (op, op))
    return [Run(*row) for row in found]


def proposals(connection: sqlite3.Connection, op: str) -> list[Proposal]:
    found = connection.execute(
        """SELECT p.op, operator, proposer, k.text, parents, run, reply, failure,
                  prompt_tokens, completion_tokens, seconds, created
           FROM proposals p LEFT JOIN kernels k ON k.id = p.kernel_id
           WHERE p.op = ? OR ? = '' ORDER BY created, p.rowid""",
        (op, op),
    )
    return [
        Proposal(
            op=row[0], operator=row[1], proposer=row[2], kernel=_parsed(row[3]) if row[3] else None,
            parents=tuple(json.loads(row[4])), run=row[5], reply=row[6], failure=row[7],
            cost=Cost(*row[8:11]), created=row[11],
        )
        for row in found
    ]  # fmt: skip


def evaluations(connection: sqlite3.Connection, op: str) -> list[Evaluation]:
    devices = {row[0]: _device(row[1:]) for row in connection.execute("SELECT * FROM devices")}
    measurements = defaultdict[str, list[Measurement]](list)
    found = connection.execute(
        """SELECT m.* FROM measurements m JOIN evaluations e ON e.id = m.evaluation_id
           WHERE e.op = ? OR ? = '' ORDER BY m.rowid""",
        (op, op),
    )
    for evaluation_id, *fields in found:
        measurements[evaluation_id].append(Measurement(*fields))
    found = connection.execute("SELECT * FROM evaluations WHERE op = ? OR ? = '' ORDER BY created, rowid", (op, op))
    return [_evaluation(row, devices[row[3]], measurements[row[0]]) for row in found]


@lru_cache(maxsize=100_000)
def _parsed(text: str) -> Kernel:
    """A run asks for the same kernels again in every generation, and a text never changes what it says."""
    return genome.parse(text)


def _device(row: Row) -> DeviceInfo:
    tflops = tuple((dtype, rate) for dtype, rate in json.loads(row[-1]))
    return replace(DeviceInfo(*row[:-1]), tflops=tflops)


def _evaluation(row: Row, device: DeviceInfo, measurements: list[Measurement]) -> Evaluation:
    return Evaluation(
        kernel_id=row[1], op=row[2], device=device, outcome=Outcome(row[4]), log=row[5],
        measurements=tuple(measurements), skipped=tuple(json.loads(row[6])),
        deterministic=None if row[7] is None else bool(row[7]),
        resources=tuple(Resources(*fields) for fields in json.loads(row[8])),
        seed=row[9], seconds=row[10], created=row[11],
    )  # fmt: skip
