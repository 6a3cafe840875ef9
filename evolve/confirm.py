"""Confirmation of champions in fresh processes, of several ops together: no worker waits for the last one of an op."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field

from archive.kernel import Kernel
from archive.records import Evaluation
from evolve.engines.engine import Engine, Job
from evolve.selection.sharing import Share
from evolve.selection.view import OpView

ROUNDS = 4  # if a champion fails, the next round confirms its successor


@dataclass(frozen=True)
class Champions:
    """The champions of one op, and the run's share of the work on them. The run's leg lasts while one is confirmed."""

    locator: str
    view: OpView
    share: Share
    leg: Callable[[], AbstractContextManager[None]] = nullcontext


def confirm(ops: Sequence[Champions], engine: Engine) -> Generator[Evaluation, None, None]:
    """Test the champions again in fresh processes. This ignores the deadline, but the number of rounds is bounded."""
    for _ in range(ROUNDS):
        with ExitStack() as legs:
            rounds = {champions.view.op: legs.enter_context(Round(champions)) for champions in ops}
            for verdict in engine.evaluate(job for one in rounds.values() for job in one.jobs()):
                yield from rounds[verdict.op].take(verdict)
        for champions in ops:
            champions.share.others_work(champions.view)


@dataclass
class Round(AbstractContextManager["Round"]):
    """One round of an op's champions."""

    champions: Champions
    waiting: list[tuple[Kernel, str]] = field(init=False)  # with the ids of their current verdicts
    under_way: int = 0
    leg: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        view = self.champions.view
        self.waiting = [(kernel, view.last_read(kernel.id)) for kernel in view.unconfirmed()]

    def __exit__(self, *_: object) -> None:
        self.leg.close()

    def jobs(self) -> Iterator[Job]:
        while self.waiting:
            kernel, seen = self.waiting.pop(0)
            if self.champions.share.take(self.champions.view, kernel.id, seen):
                if not self.under_way:
                    self.leg.enter_context(self.champions.leg())
                self.under_way += 1
                yield Job(kernel, self.champions.locator, confirm=True)

    def take(self, verdict: Evaluation) -> Iterator[Evaluation]:
        """Archive and yield a verdict."""
        view = self.champions.view
        for judged in self.champions.share.judged(view, [verdict]):
            view.store.append(judged)
            yield judged
        self.under_way -= 1
        if not self.under_way:
            self.leg.close()
