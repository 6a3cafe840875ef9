"""Contenders: the few verdicts that determine the champions of an op on a device, updated as verdicts are added.

On each workload, these are the current verdicts that passed, except those that another verdict beats both in the median
and in the upper bound. Confirmed verdicts are compared only with confirmed verdicts. For any time, the contenders
include the fastest verdict whose interval lies below it. The table repeats fields of the summaries, so that champions
are found without reading the times of every kernel.
"""

import sqlite3
from collections.abc import Iterable

from archive.summaries import TIMES, Timing, timings

OF_WORKLOAD = "op = ? AND device = ? AND workload = ? AND confirmed = ?"
BEATEN = f"SELECT 1 FROM contenders WHERE {OF_WORKLOAD} AND median_us <= ? AND high_us <= ? LIMIT 1"  # noqa: S608
BEATS = f"DELETE FROM contenders WHERE {OF_WORKLOAD} AND median_us > ? AND high_us >= ?"  # noqa: S608
IN_FORCE = """SELECT number, confirmed, workloads, times FROM evaluation_summaries
    WHERE op = ? AND device = ? AND +in_force = 1 AND +outcome = 'passed' ORDER BY number"""
REPLACED = """SELECT EXISTS (SELECT 1 FROM contenders WHERE op = ? AND device = ? AND number IN (
    SELECT number FROM evaluation_summaries WHERE kernel_id = ? AND device = ? AND in_force = 0))"""
ADDED = """SELECT number, confirmed, workloads, times FROM evaluation_summaries
    WHERE id = ? AND in_force = 1 AND outcome = 'passed'"""


def follow(connection: sqlite3.Connection, evaluation_id: str, of: tuple[str, str], kernel_id: str) -> bool:
    """Add a new verdict, and return whether the contenders of its op and device must be found again.

    They must if the verdict replaces that of a contender, because other kernels may take its place.
    """
    op, device = of
    if connection.execute(REPLACED, (op, device, kernel_id, device)).fetchone()[0]:
        return True
    for number, confirmed, workloads, times in connection.execute(ADDED, [evaluation_id]).fetchall():
        _add(connection, of, number, confirmed, timings(workloads, times))
    return False


def gather(connection: sqlite3.Connection, op: str, device: str) -> None:
    """Find the contenders of an op on a device among all its verdicts."""
    # key: workload, and whether the verdict is confirmed
    found: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    for number, confirmed, workloads, times in connection.execute(IN_FORCE, (op, device)):
        every = zip(workloads.split("\n"), TIMES.iter_unpack(times), strict=bool(times))
        for workload, (median_us, _, high_us, _, _) in every:
            _keep(found.setdefault((workload, confirmed), []), median_us, high_us, number)
    connection.execute("DELETE FROM contenders WHERE op = ? AND device = ?", (op, device))
    rows = ((op, device, *place, *one) for place, held in found.items() for one in held)
    connection.executemany("INSERT INTO contenders VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _keep(held: list[tuple[float, float, int]], median_us: float, high_us: float, number: int) -> None:
    """Add a time to those of one workload, unless one of them beats it. Remove those that it beats, as `_add` does."""
    for other_median, other_high, _ in held:
        if other_median <= median_us and other_high <= high_us:
            return
    held[:] = [one for one in held if not (one[0] > median_us and one[1] >= high_us)]
    held.append((median_us, high_us, number))


def gather_all(connection: sqlite3.Connection) -> None:
    pairs = connection.execute("SELECT DISTINCT op, device FROM evaluation_summaries").fetchall()
    for op, device in pairs:
        gather(connection, op, device)


def _add(
    connection: sqlite3.Connection, of: tuple[str, str], number: int, confirmed: int, found: Iterable[Timing]
) -> None:
    """Add the times of a verdict that is newer than all contenders. Of two equal times, the older one is kept."""
    for one in found:
        place, times = (*of, one.workload, confirmed), (one.median_us, one.high_us)
        if not connection.execute(BEATEN, (*place, *times)).fetchone():
            connection.execute(BEATS, (*place, *times))
            connection.execute("INSERT INTO contenders VALUES (?, ?, ?, ?, ?, ?, ?)", (*place, *times, number))
