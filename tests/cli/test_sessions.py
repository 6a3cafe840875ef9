"""Sessions: the searches of a resumed campaign, and the reason that is printed when it ends."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from records import CPU, GPU, confirmed
from scripted_runs import PricedModel, kernel, op
from shipping import ship

from archive import library, measured
from archive.kernel import Proposal
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome
from archive.runs import Budget, Run
from archive.sqlite import SqliteStore, open_archive
from evolve.budget import Ended
from evolve.cli.display import reason, standing_of
from evolve.cli.options import RunOptions
from evolve.cli.session import Backends, Session, opened
from evolve.cli.setups import Setup
from evolve.errors import UserError
from evolve.proposers.tuner.proposer import OfflineProposer
from evolve.report.progress import Phases
from evolve.request import Proposer
from reference_ops import catalog

FILES = ("one.py", "two.py")
LIMITS = Budget(evals=4)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with_runs = open_archive(tmp_path / "a.db")
    yield with_runs
    with_runs.close()


def resumed(store: SqliteStore, *defined: str) -> tuple[str, ...]:
    """Return the ops of a resumed campaign over `one` and `two` whose files now define these ops."""
    return tuple(search.op.name for search in campaign(store, defined).searches)


def campaign(store: SqliteStore, defined: Sequence[str], proposer: Proposer | None = None) -> Session:
    runs = tuple(Run(f"run of {name}", name, CPU.key, "offline", 0, 1.0, campaign="both") for name in ("one", "two"))
    setup = Setup(FILES, RunOptions(), LIMITS, runs)
    loaded = [(op(name), file) for name, file in dict(zip(defined, FILES, strict=True)).items()]
    return opened(setup, loaded, Backends(proposer or OfflineProposer(), FakeEngine(), store, Phases()), [])


def ending(session: Session) -> str:
    """Return the reason that is printed when nothing is left to try."""
    standings = [standing_of(search, session.backends) for search in session.searches]
    return reason(session, Ended.NOTHING, standings)[0]


def judged(number: int, name: str, outcome: Outcome) -> tuple[Proposal, Evaluation]:
    made = kernel(number, name)
    timed = (Measurement("n=4096 float32", 5.0, 5.0, 5.0, 9, 10.0),) if outcome is Outcome.PASSED else ()
    return Proposal(name, "tell", "tell", made), Evaluation(made.id, name, CPU, outcome, "", timed)


def test_a_resumed_campaign_keeps_its_ops(store: SqliteStore) -> None:
    assert resumed(store, "one", "two") == ("one", "two")


@pytest.mark.parametrize("defined", [("one", "three"), ("one", "one"), ("two", "one")])
def test_a_file_that_now_defines_another_op_is_an_error(store: SqliteStore, defined: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="no longer defines"):
        resumed(store, *defined)


def test_a_campaign_without_kernels_ends_by_saying_how_to_get_some(store: SqliteStore) -> None:
    words = ending(campaign(store, ["one", "two"]))
    assert words.startswith(
        "There is no kernel to vary: no kernels for one and two are shipped or archived. Set OPENAI"
    )
    assert "`evolve tell FILE.cu one.py`" in words


def test_a_campaign_whose_kernels_all_failed_ends_by_saying_how_to_get_some(store: SqliteStore) -> None:
    store.append(*judged(1, "two", Outcome.WRONG))
    assert "no kernel to vary: no kernel for one and two has passed." in ending(campaign(store, ["one", "two"]))


def test_the_end_of_a_campaign_names_the_op_without_a_kernel(store: SqliteStore) -> None:
    store.append(*judged(1, "two", Outcome.PASSED))
    words = ending(campaign(store, ["one", "two"]))
    assert words.startswith("Nothing is left to try: ")
    assert "no kernels for one are shipped or archived" in words


def test_a_campaign_ends_when_its_model_proposes_no_more_kernels(store: SqliteStore) -> None:
    assert ending(campaign(store, ["one", "two"], PricedModel())) == "The proposer has no further proposals."


def starting(store: SqliteStore, given: RunOptions, device: DeviceInfo = CPU) -> Session:
    softmax = catalog.load("softmax")
    backends = Backends(OfflineProposer(), FakeEngine(info=device), store, Phases())
    return opened(Setup(("softmax",), given, LIMITS), [(softmax, "softmax")], backends, [])


def test_a_run_starts_from_every_shipped_kernel(store: SqliteStore) -> None:
    session = starting(store, RunOptions(), GPU)
    assert [seed.kernel_id for seed in session.seeds] == [kernel.id for kernel in library.shipped("softmax")]
    assert session.searches[0].scope.excluded == frozenset()


def test_a_run_without_champions_starts_from_the_plain_kernel(store: SqliteStore) -> None:
    session = starting(store, RunOptions(no_champions=True))
    (plain,) = library.plain("softmax")
    assert [seed.kernel_id for seed in session.seeds] == [plain.id]
    assert session.searches[0].scope.excluded == {kernel.id for kernel in library.shipped("softmax")} - {plain.id}


def test_a_run_without_seeds_starts_from_no_shipped_kernel(store: SqliteStore) -> None:
    session = starting(store, RunOptions(no_seeds=True))
    assert session.seeds == ()
    assert session.searches[0].scope.excluded == {kernel.id for kernel in library.shipped("softmax")}


def test_a_run_on_a_gpu_starts_from_the_settings_that_won_on_some_gpu(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain,) = library.plain("softmax")
    tuned = plain.with_knobs({"THREADS": 512})
    verdict = measured.as_shipped(confirmed(tuned.id, replace(GPU, name="Another GPU"), 1.0, w=5.0))
    ship(tmp_path / "kernels", monkeypatch, plain, found=[measured.MeasuredKernel("k0.cu", tuned, verdict)])
    assert [seed.kernel_id for seed in starting(store, RunOptions(), GPU).seeds] == [plain.id, tuned.id]
    assert [seed.kernel_id for seed in starting(store, RunOptions()).seeds] == [plain.id]
