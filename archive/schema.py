"""Schema of the archive file: the migration steps, oldest first, and the code that applies them to an older file.

Never change a step; add a new one. `children`, `contenders`, `derived` and the tables whose names end in `_summaries`
are computed from the records in the other tables, so that queries need not read the large tables. They can be rebuilt.
"""

import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from archive import contenders
from archive.kernel import Kernel
from archive.summaries import LOG_CHARACTERS, Timing, packed

APPLICATION_ID = 0x45564F4C  # "EVOL": distinguishes archives from the SQLite files of other programs
LONG_SECONDS = 1.0  # seconds after which a migration prints a notice
STEPS_BETWEEN_LOOKS = 100_000  # number of instructions of SQLite's virtual machine between checks of the time
READ_AT_ONCE = 500  # some builds of SQLite accept at most 999 values in one statement

Step = tuple[str | Callable[[sqlite3.Connection], None], ...]


class SchemaError(Exception):
    """Raised when a file is not an archive, or was written by a newer version."""


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the number of schema steps that the file has; 0 for a new file."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise SchemaError(f"{path} is a database, but not an archive of kernels")
    if version > len(MIGRATIONS):
        raise SchemaError(
            f"{path} was written by a newer version of evolve (schema {version}); update evolve to read it"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply every missing step in one transaction, so that no reader sees an archive between two versions."""
    connection.isolation_level = None
    connection.set_progress_handler(_notice(path), STEPS_BETWEEN_LOOKS)
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for step in MIGRATIONS[version:]:
        for statement in step:
            if isinstance(statement, str):
                connection.execute(statement)
            else:
                statement(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    connection.execute("COMMIT")
    connection.set_progress_handler(None, 0)
    connection.isolation_level = "DEFERRED"


def _notice(path: Path) -> Callable[[], int]:
    """Return a progress handler that prints a notice once if a migration takes long."""
    began, said = time.monotonic(), False

    def look() -> int:
        nonlocal said
        if not said and time.monotonic() - began > LONG_SECONDS:
            said = True
            print(f"updating the archive {path} to this version; this happens only once", file=sys.stderr, flush=True)
        return 0

    return look


def _summarise_kernels(connection: sqlite3.Connection) -> None:
    def summaries() -> Iterator[tuple[str, str, str, str]]:
        for kernel_id, op, text in connection.execute("SELECT id, op, text FROM kernels ORDER BY rowid"):
            if isinstance(text, str):  # other values are damage, which is reported when the kernel is read
                kernel = Kernel(text)
                yield kernel_id, op, kernel.family, kernel.outline

    connection.executemany("INSERT OR IGNORE INTO kernel_summaries VALUES (NULL, ?, ?, ?, ?)", summaries())


def _summarise_proposals(connection: sqlite3.Connection) -> None:
    def children() -> Iterator[tuple[str, str]]:
        for proposal_id, parents in connection.execute("SELECT id, parents FROM proposals WHERE parents <> '[]'"):
            yield from ((parent, proposal_id) for parent in _strings(parents))

    connection.executemany("INSERT OR IGNORE INTO children VALUES (?, ?)", children())


def _summarise_evaluations(connection: sqlite3.Connection) -> None:
    found = connection.execute(
        f"""SELECT e.id, kernel_id, op, d.kind || ' ' || d.name, outcome, created, seconds, confirmed IS NOT NULL,
                   traits, CASE outcome WHEN 'passed' THEN '' ELSE substr(log, 1, {LOG_CHARACTERS}) END
            FROM evaluations e JOIN devices d ON d.id = e.device_id ORDER BY e.rowid"""  # noqa: S608
    )
    while rows := found.fetchmany(READ_AT_ONCE):
        times = _times(connection, [row[0] for row in rows])
        connection.executemany(
            "INSERT OR IGNORE INTO evaluation_summaries VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?)",
            (
                (
                    *row[:8], _code(row[8]), row[8] or "", row[9],
                    max((timing.speedup for timing in times.get(row[0], ())), default=0.0),
                    *packed(times.get(row[0], ())),
                )
                for row in rows
            ),
        )  # fmt: skip
    connection.execute(
        """UPDATE evaluation_summaries SET in_force = 1 WHERE number IN (
               SELECT number FROM (SELECT number, row_number() OVER (
                   PARTITION BY kernel_id, device ORDER BY created DESC, number DESC) AS place
               FROM evaluation_summaries) WHERE place = 1)"""
    )


def _times(connection: sqlite3.Connection, evaluations: list[str]) -> dict[str, list[Timing]]:
    marks = ", ".join("?" * len(evaluations))
    times: dict[str, list[Timing]] = {}
    for evaluation_id, workload, *us in connection.execute(
        f"""SELECT evaluation_id, workload, median_us, low_us, high_us, eager_us, compile_us, autotune_us, floor_us
            FROM measurements WHERE evaluation_id IN ({marks}) ORDER BY rowid""",  # noqa: S608
        evaluations,
    ):
        baselines = [time for time in us[3:6] if isinstance(time, float) and time]
        if baselines and all(isinstance(time, float) for time in us[:3]) and us[0]:
            timing = Timing(str(workload), us[0], us[1], us[2], min(baselines), us[6])
            times.setdefault(evaluation_id, []).append(timing)
    return times


def _code(traits: object) -> str:
    try:
        return str(json.loads(traits)["code"]) if isinstance(traits, str) else ""
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


def _strings(text: object) -> list[str]:
    try:
        found = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


MIGRATIONS: tuple[Step, ...] = (
    (
        "CREATE TABLE kernels (id TEXT PRIMARY KEY, op TEXT NOT NULL, text TEXT NOT NULL)",
        """CREATE TABLE proposals (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, operator TEXT NOT NULL, proposer TEXT NOT NULL,
            kernel_id TEXT NOT NULL, parents TEXT NOT NULL, run TEXT NOT NULL, reply TEXT NOT NULL,
            failure TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
            seconds REAL NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE devices (
            id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, arch TEXT NOT NULL, sms INTEGER NOT NULL,
            shared_bytes INTEGER NOT NULL, l2_bytes INTEGER NOT NULL, driver TEXT NOT NULL, torch TEXT NOT NULL,
            copy_gb_s REAL NOT NULL, tflops TEXT NOT NULL)""",
        """CREATE TABLE evaluations (
            id TEXT PRIMARY KEY, kernel_id TEXT NOT NULL, op TEXT NOT NULL, device_id TEXT NOT NULL,
            outcome TEXT NOT NULL, log TEXT NOT NULL, skipped TEXT NOT NULL, deterministic INTEGER,
            resources TEXT NOT NULL, seed INTEGER NOT NULL, seconds REAL NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE measurements (
            evaluation_id TEXT NOT NULL, workload TEXT NOT NULL, median_us REAL NOT NULL, low_us REAL NOT NULL,
            high_us REAL NOT NULL, samples INTEGER NOT NULL, eager_us REAL NOT NULL, compile_us REAL, floor_us REAL,
            PRIMARY KEY (evaluation_id, workload))""",
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, device TEXT NOT NULL, proposer TEXT NOT NULL,
            seed INTEGER NOT NULL, created REAL NOT NULL)""",
        "CREATE INDEX proposals_by_kernel ON proposals (kernel_id)",
        "CREATE INDEX evaluations_by_op ON evaluations (op)",
    ),
    (
        "ALTER TABLE measurements ADD COLUMN autotune_us REAL",
        "ALTER TABLE measurements ADD COLUMN graph_us REAL",
        # The checks, their conditions, and the confirmation, as JSON.
        "ALTER TABLE evaluations ADD COLUMN checks TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE evaluations ADD COLUMN conditions TEXT",
        "ALTER TABLE evaluations ADD COLUMN confirmed TEXT",
    ),
    (
        "ALTER TABLE proposals ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN usd REAL NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN call TEXT NOT NULL DEFAULT ''",
        # The messages of a question as JSON: pairs of a role and the id of a text, because most texts are repeated.
        """CREATE TABLE questions (
            proposal_id TEXT PRIMARY KEY, op TEXT NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL,
            parameters TEXT NOT NULL, messages TEXT NOT NULL)""",
        "CREATE TABLE texts (id TEXT PRIMARY KEY, text TEXT NOT NULL)",
        "ALTER TABLE runs ADD COLUMN strategy TEXT NOT NULL DEFAULT 'evolve'",
        "ALTER TABLE runs ADD COLUMN budget TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE runs ADD COLUMN campaign TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN words TEXT NOT NULL DEFAULT '[]'",
        "CREATE TABLE legs (id TEXT PRIMARY KEY, run TEXT NOT NULL, started REAL NOT NULL, ended REAL NOT NULL)",
        "ALTER TABLE evaluations ADD COLUMN traits TEXT",
        """CREATE TABLE profiles (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, profile TEXT NOT NULL, created REAL NOT NULL)""",
    ),
    (
        """CREATE TABLE standards (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, standard TEXT NOT NULL, created REAL NOT NULL)""",
    ),
    ("CREATE TABLE merged (evaluation_id TEXT PRIMARY KEY, op TEXT NOT NULL)",),
    (
        """CREATE TABLE kernel_summaries (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, op TEXT NOT NULL, family TEXT NOT NULL,
            outline TEXT NOT NULL)""",
        """CREATE TABLE evaluation_summaries (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kernel_id TEXT NOT NULL, op TEXT NOT NULL,
            device TEXT NOT NULL, outcome TEXT NOT NULL, created REAL NOT NULL, seconds REAL NOT NULL,
            confirmed INTEGER NOT NULL, in_force INTEGER NOT NULL, code TEXT NOT NULL, traits TEXT NOT NULL,
            log TEXT NOT NULL, speedup REAL NOT NULL, workloads TEXT NOT NULL, times BLOB NOT NULL)""",
        "CREATE TABLE children (parent TEXT NOT NULL, proposal_id TEXT NOT NULL, PRIMARY KEY (parent, proposal_id)) "
        "WITHOUT ROWID",
        _summarise_kernels,
        _summarise_proposals,
        _summarise_evaluations,
        "CREATE INDEX kernels_by_op ON kernels (op)",
        "CREATE INDEX kernel_summaries_by_op ON kernel_summaries (op)",
        "CREATE INDEX kernel_summaries_by_outline ON kernel_summaries (outline)",
        "CREATE INDEX evaluation_summaries_by_op ON evaluation_summaries (op, device)",
        "CREATE INDEX evaluation_summaries_by_kernel ON evaluation_summaries (kernel_id, device)",
        "CREATE INDEX evaluation_summaries_by_code ON evaluation_summaries (code)",
        "CREATE INDEX evaluation_outcomes ON evaluation_summaries (op, device, outcome, in_force, speedup)",
        "CREATE INDEX evaluations_by_kernel ON evaluations (kernel_id)",
        "CREATE INDEX evaluations_by_device ON evaluations (op, device_id, created)",
        # All small columns, so that a query for them does not read the replies.
        """CREATE INDEX proposal_summaries ON proposals (
            op, id, operator, proposer, kernel_id, parents, run, failure, created, call, prompt_tokens,
            completion_tokens, seconds, cached_tokens, reasoning_tokens, usd)""",
        "CREATE INDEX proposals_by_op ON proposals (op)",
        "CREATE INDEX proposals_by_run ON proposals (run)",
        "CREATE INDEX legs_by_run ON legs (run)",
        "CREATE INDEX profiles_by_op ON profiles (op)",
        "CREATE INDEX standards_by_op ON standards (op)",
    ),
    (
        "ALTER TABLE devices ADD COLUMN l2_gb_s REAL NOT NULL DEFAULT 0",
        "ALTER TABLE devices ADD COLUMN launch_us REAL NOT NULL DEFAULT 0",
        "ALTER TABLE devices ADD COLUMN grid_barrier_us REAL NOT NULL DEFAULT 0",
    ),
    (
        # The largest sizes that were checked, as JSON, and the run that made the evaluation.
        "ALTER TABLE evaluations ADD COLUMN envelope TEXT",
        "ALTER TABLE evaluations ADD COLUMN run TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE evaluation_summaries ADD COLUMN run TEXT NOT NULL DEFAULT ''",
        # Kernels that processes are working on. These are not records: merges and recovery leave them out.
        """CREATE TABLE claims (
            kernel_id TEXT NOT NULL, device TEXT NOT NULL, holder TEXT NOT NULL, host TEXT NOT NULL,
            pid INTEGER NOT NULL, born TEXT NOT NULL, expires REAL NOT NULL, PRIMARY KEY (kernel_id, device))
        WITHOUT ROWID""",
    ),
    (
        # Hashes of shipped kernels and verdicts that have been added. These are not records.
        "CREATE TABLE seeded (digest TEXT PRIMARY KEY, added REAL NOT NULL)",
    ),
    (
        # Also derived from the records: see contenders.py.
        """CREATE TABLE contenders (
            op TEXT NOT NULL, device TEXT NOT NULL, workload TEXT NOT NULL, confirmed INTEGER NOT NULL,
            median_us REAL, high_us REAL, number INTEGER NOT NULL)""",
        "CREATE INDEX contenders_by_op ON contenders (op, device, workload, confirmed, median_us, high_us, number)",
        contenders.gather_all,
        # All small columns in the order of time, so that spending is added up without reading logs and replies.
        # The condition keeps other queries, which also read other columns, from using them.
        """CREATE INDEX evaluations_in_order ON evaluation_summaries (
            op, device, created, number, kernel_id, seconds, outcome, speedup, run) WHERE op <> ''""",
        """CREATE INDEX proposals_in_order ON proposals (
            op, created, kernel_id, run, prompt_tokens, completion_tokens, usd, seconds) WHERE op <> ''""",
    ),
    (
        # Values that commands have computed from the records of an op, as JSON, and the state of these records: see
        # sqlite.py.
        """CREATE TABLE derived (what TEXT NOT NULL, op TEXT NOT NULL, state TEXT NOT NULL, json TEXT NOT NULL,
            PRIMARY KEY (what, op)) WITHOUT ROWID""",
    ),
)
