"""A run as plain lines, for where no terminal shows the live display."""

import time
from collections.abc import Iterator, Sequence

from archive.proposals import Proposal
from archive.records import Evaluation
from evolve.report.confirmation import NO_DUEL, sanitizer_words
from evolve.report.progress import Watcher
from evolve.report.standing import Standing
from evolve.report.tables import counts_line, made
from evolve.report.words import clock, counted, figure, one_line, short, times, workload_labels
from evolve.selection.population import Champion

MADE_SHOWN = 60
QUIET_SECONDS = 60.0  # after which a line says that the run still goes on


class Log:
    """Turns events into a line per improvement, and one per minute without any."""

    def __init__(self, watcher: Watcher, workloads: Sequence[str], started: float, name: str = "") -> None:
        self._watcher, self._started, self._name = watcher, started, f"{name}: " if name else ""
        self._labels = workload_labels(workloads)
        self._spoke = time.monotonic()

    def lines(self, event: Proposal | Evaluation) -> Iterator[str]:
        again = isinstance(event, Evaluation) and self._watcher.has_judged(event.kernel_id)
        won = self._watcher.take(event)
        now = time.monotonic()
        if isinstance(event, Evaluation) and again:
            yield self._stamped(confirmation(event))
        elif won:
            yield self._stamped(self._improvement(won))
        elif now - self._spoke > QUIET_SECONDS:
            yield self._stamped(counts_line(self._standing()))
        else:
            return
        self._spoke = now

    def _improvement(self, won: tuple[Champion, ...]) -> str:
        best = max(won, key=lambda champion: champion.measurement.speedup)
        label = self._labels.of.get(best.workload, best.workload)
        return (
            f"{short(best.kernel_id)} {one_line(made(self._standing(), best.kernel_id), MADE_SHOWN)}: fastest on "
            f"{counted(len(won), 'workload')}, such as {label} in {figure(best.measurement.median_us)} µs "
            f"({times(best.measurement.speedup)})"
        )

    def _standing(self) -> Standing:
        return self._watcher.standing()

    def _stamped(self, text: str) -> str:
        return f"{clock(time.monotonic() - self._started):>6}  {self._name}{text}"


def confirmation(evaluation: Evaluation) -> str:
    """A line on how a champion stood its confirmation, or that it fell."""
    kernel = short(evaluation.kernel_id)
    if evaluation.confirmed is None:
        return f"{kernel} fell when it was confirmed: {evaluation.outcome}: {one_line(evaluation.log)}"
    duels = evaluation.confirmed.duels
    won = sum(duel.won for duel in duels)
    best = max((duel.speedup for duel in duels), default=None)
    said, _ = sanitizer_words(evaluation)
    if not duels:
        return f"{kernel} confirmed; {NO_DUEL}; {said}"
    return f"{kernel} confirmed: won {won} of {counted(len(duels), 'duel')} with PyTorch, {times(best)} at best; {said}"
