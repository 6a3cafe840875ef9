"""Runs replayed from recorded replies: they need no key and no network, and always give the same run."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from command import TWICE
from fake_engine import FakeEngine
from records import CPU
from scripted_endpoint import KEY, ScriptedEndpoint, Step, answer, in_fence, status
from scripted_runs import PricedModel, faster_and_faster, kernel, op

from archive.kernel import Proposal
from archive.records import Evaluation
from archive.runs import AskedQuestion, Budget, Question, Run, Scope
from archive.sqlite import SqliteStore, open_archive
from evolve import wiring
from evolve.cli import setups
from evolve.cli.options import RunOptions
from evolve.engines.replayed import RecordedVerdicts, seen_by
from evolve.errors import UserError
from evolve.loop import evolve
from evolve.prompting.operators import EDITS
from evolve.proposers.llm.endpoint import Endpoints
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.proposer import LlmProposer
from evolve.proposers.tuner.proposer import FinishingProposer, OfflineProposer
from evolve.request import Proposer
from evolve.search import Search
from reference_ops import catalog
from reference_ops.op import Op

EVALS, SEED = 60, 11


def steps(of: int) -> list[Step]:
    """Return good answers, some prose (which leads to a second prompt) and some faults; kernels differ by model."""
    good = [answer(in_fence(kernel(2 * number + of).text)) for number in range(1, 100)]
    return [
        step
        for number, one in enumerate(good)
        for step in ([answer(f"Warps. {of} {number}")] if number % 5 == 4 else [status(400)] if number % 9 == 7 else [])
        + [one]
    ]


def run(store: SqliteStore, proposer: Proposer) -> None:
    search = Search("run", catalog.load(TWICE), TWICE, SEED, Budget(evals=EVALS), scope=Scope("run"))
    for _ in evolve(search, (), proposer, FakeEngine(faster_and_faster), store):
        pass


def recorded(archive: Path, *, tune: bool) -> SqliteStore:
    store = open_archive(archive)
    record_into(store, tune=tune)
    return store


def record_into(store: SqliteStore, *, tune: bool) -> None:
    store.append(Run("run", "twice", CPU.key, "m-1, m-2", SEED, time.time()))
    with pytest.MonkeyPatch.context() as patch, ScriptedEndpoint(steps(0)) as one, ScriptedEndpoint(steps(1)) as other:
        patch.setenv("NO_PROXY", "127.0.0.1")
        models = LlmProposer(
            (
                Model("m-1", one.base_url, "THE_KEY"),
                Model("m-2", other.base_url, "THE_KEY", form=EDITS, temperature=0.5),
            ),
            Endpoints({"THE_KEY": KEY}, 0),
        )
        run(store, FinishingProposer(models, OfflineProposer()) if tune else models)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    return recorded(tmp_path_factory.mktemp("original") / "archive.db", tune=False)


@pytest.fixture
def replayed(original: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SqliteStore]:
    """Return a function that replays the original run into an archive of the given name, without access to a model."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "THE_KEY"):
        monkeypatch.delenv(name, raising=False)

    def again(name: str) -> SqliteStore:
        store = open_archive(tmp_path / name)
        run(store, wiring.replaying(original, "run", tune=False))
        return store

    return again


def said(store: SqliteStore) -> list[Proposal]:
    """Return the proposals without their times, which differ between any two runs."""
    return [replace(p, created=0.0, cost=replace(p.cost, seconds=0.0)) for p in store.find(Proposal)]


def test_the_original_run_has_every_kind_of_reply(original: SqliteStore) -> None:
    found = original.find(Proposal)
    assert {proposal.proposer for proposal in found} == {"m-1", "m-2"}
    assert {"improve", "repair", "explore"} <= {proposal.operator for proposal in found}
    assert any("status 400" in proposal.failure for proposal in found)
    assert any(proposal.reply.startswith("Warps.") for proposal in found)


def test_two_replays_are_the_same_run(replayed: Callable[[str], SqliteStore]) -> None:
    first, second = replayed("a.db"), replayed("b.db")
    assert [proposal.id for proposal in first.find(Proposal)] == [proposal.id for proposal in second.find(Proposal)]
    assert said(first) == said(second)


def test_a_replay_repeats_the_run_itself(original: SqliteStore, replayed: Callable[[str], SqliteStore]) -> None:
    assert said(replayed("a.db")) == said(original)


def test_a_replay_asks_the_same_questions(original: SqliteStore, replayed: Callable[[str], SqliteStore]) -> None:
    assert replayed("a.db").find(AskedQuestion) == original.find(AskedQuestion)


def test_a_replay_reaches_the_same_verdicts(original: SqliteStore, replayed: Callable[[str], SqliteStore]) -> None:
    first, second = (
        [(e.kernel_id, e.outcome, e.measurements) for e in store.find(Evaluation)]
        for store in (original, replayed("a.db"))
    )
    assert first == second


def test_a_replay_can_be_replayed(
    original: SqliteStore, replayed: Callable[[str], SqliteStore], tmp_path: Path
) -> None:
    once, twice = replayed("a.db"), open_archive(tmp_path / "b.db")
    run(twice, wiring.replaying(once, "run", tune=False))
    assert said(twice) == said(original)


def test_the_tuner_repeats_its_proposals_in_a_replay(tmp_path: Path) -> None:
    original, again = recorded(tmp_path / "original.db", tune=True), open_archive(tmp_path / "again.db")
    run(again, wiring.replaying(original, "run"))
    assert "offline" in {proposal.proposer for proposal in original.find(Proposal)}
    assert said(again) == said(original)


@pytest.mark.parametrize(("given", "used"), [(None, EVALS), (EVALS + 20, EVALS), (9, 9)])
def test_a_replay_evaluates_no_more_than_the_run_did(given: int | None, used: int, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = open_archive(path)
    question = Question("m-1", "http://127.0.0.1", "{}", (("user", "a kernel?"),))
    asked = Proposal("twice", "draft", "m-1", None, run="run", reply="a reply", created=time.time(), question=question)
    store.append(Run("run", "twice", CPU.key, "m-1", SEED, time.time(), budget=Budget(evals=EVALS)), asked)
    setup = setups.replayed((TWICE,), RunOptions(replay="run"), Budget(evals=given), path)
    assert setup.budget.evals == used


def grown(folder: Path, *, tune: bool) -> SqliteStore:
    """Return an archive with a recorded run between two others that proposed many kernels, and another op's kernels."""
    store = open_archive(folder / "grown.db")
    evolve_more(store, "before", 100)
    record_into(store, tune=tune)
    evolve_more(store, "after", 300)
    evolve_more(store, "elsewhere", 1, op("thrice"))
    return store


def evolve_more(store: SqliteStore, run: str, first: int, of: Op | None = None) -> None:
    task = of or catalog.load(TWICE)
    model = PricedModel(written={task.name: first})
    search = Search(run, task, TWICE, SEED, Budget(evals=24), scope=Scope(run))
    for _ in evolve(search, (), model, FakeEngine(faster_and_faster), store):
        pass


def replay_within(store: SqliteStore, *, tune: bool) -> FakeEngine:
    """Replay the recorded run in its own archive, and return the engine."""
    (recorded_run,), engine = store.find(Run, ids=["run"]), FakeEngine(faster_and_faster)
    seen = seen_by(recorded_run, store, engine.info)
    search = Search("again", catalog.load(TWICE), TWICE, SEED, Budget(evals=EVALS), scope=Scope("again"))
    proposer = wiring.replaying(store, "run", tune=tune)
    for _ in evolve(search, (), proposer, RecordedVerdicts(engine, recorded_run, store), seen):
        pass
    return engine


@pytest.mark.parametrize(
    "tune", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["models", "models and tuner"]
)
def test_a_replay_in_a_larger_archive_asks_the_same_questions_and_evaluates_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tune: bool
) -> None:
    store = grown(tmp_path, tune=tune)
    verdicts = len(store.find(Evaluation))
    engine = replay_within(store, tune=tune)
    first, second = (
        [(p.operator, p.proposer, p.kernel_id, p.parents, p.failure) for p in store.find(Proposal) if p.run == run]
        for run in ("run", "again")
    )
    assert second == first
    asked = {one.proposal_id: one.question for one in store.find(AskedQuestion)}
    first_asked, second_asked = (
        [asked[p.id].messages for p in store.find(Proposal) if p.run == run and p.id in asked]
        for run in ("run", "again")
    )
    assert second_asked == first_asked
    assert (engine.jobs, len(store.find(Evaluation))) == ([], verdicts)


def test_a_run_without_a_model_cannot_be_replayed(original: SqliteStore) -> None:
    with pytest.raises(UserError, match="run other asked no model"):
        wiring.replaying(original, "other")
