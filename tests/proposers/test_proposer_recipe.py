"""The recipe for a proposer in CONTRIBUTING, followed with `RandomKnobs`.

The conformance suite runs on it too: `tests/conformance/test_proposers.py` lists it among PROPOSERS.
"""

import time
from pathlib import Path

import bad_kernels
import pytest
from fake_engine import FakeEngine, verdict
from random_knobs import RandomKnobs
from records import measurement

from archive.kernel import Proposal
from archive.records import Evaluation
from archive.runs import Budget
from archive.sqlite import SqliteStore, open_archive
from evolve.budget import Ended
from evolve.engines.engine import Job
from evolve.loop import evolve
from evolve.search import Search
from reference_ops import catalog

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
SEED = Proposal("twice", "seed", "shipped", bad_kernels.twice_kernel(), created=1.0)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "archive.db")


def by_threads(job: Job) -> Evaluation:
    """Return a verdict in which the kernel takes 1 us per thread."""
    return verdict(job, measurement("n=4096 float32", job.kernel.plan.settings["THREADS"]))


def run(store: SqliteStore, engine: FakeEngine) -> Ended:
    """Run the loop until the proposer has nothing left, and return why it ended."""
    search = Search("run", catalog.load(TWICE), TWICE, 7, Budget(evals=100), time.monotonic() + 120)
    events = evolve(search, [SEED], RandomKnobs(), engine, store)
    while True:
        try:
            next(events)
        except StopIteration as stopped:
            return Ended(stopped.value)


def test_the_loop_evaluates_the_proposals_and_ends_when_nothing_is_left(store: SqliteStore) -> None:
    engine = FakeEngine(by_threads)
    assert run(store, engine) is Ended.NOTHING
    proposed = [proposal for proposal in store.find(Proposal) if proposal.proposer == "random"]
    assert len(proposed) == 2  # the knob has three values, and the seed has one of them
    assert {parent for proposal in proposed for parent in proposal.parents} == {SEED.kernel_id}
    assert [kernel.id for kernel in engine.evaluated] == [SEED.kernel_id, *(one.kernel_id for one in proposed)]
    assert {evaluation.kernel_id for evaluation in store.find(Evaluation)} == {kernel.id for kernel in engine.evaluated}
