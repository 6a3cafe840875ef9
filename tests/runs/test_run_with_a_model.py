"""Runs against a scripted endpoint over real HTTP, with the faults that endpoints have; one is a separate process."""

import shutil
from pathlib import Path

import bad_kernels
import pytest
from command import TWICE, run
from scripted_endpoint import Rule, ScriptedEndpoint, Step, answer, in_fence, stall, status, truncated
from shared_engine import run_here

from archive.kernel import Proposal
from archive.records import Evaluation, Outcome
from archive.runs import Run
from archive.sqlite import SqliteStore, open_archive
from evolve.engines.engine import Engine

GOOD = bad_kernels.twice_kernel(note="one element a thread")
BROKEN = bad_kernels.twice_kernel("out[i] = undeclared_name;", note="does not compile")
REPAIRED = bad_kernels.twice_kernel("if (i < n) { float v = float(x[i]); out[i] = x_t(v + v); }", note="repaired")
HARMFUL = (bad_kernels.NO_OP, bad_kernels.ZEROS, bad_kernels.HALF_WRITTEN, bad_kernels.WRONG, bad_kernels.CRASHING)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[SqliteStore, int, str, ScriptedEndpoint]:
    folder = tmp_path_factory.mktemp("model")
    steps = [
        status(429),
        status(500),
        stall(),
        truncated(in_fence(GOOD.text)),
        answer("I would rather talk about kernels than write one."),
        answer(in_fence(BROKEN.text)),
        *(answer(in_fence(kernel.text)) for kernel in HARMFUL),
    ]
    repair = Rule(("# Repair this kernel", "undeclared_name"), answer(in_fence(REPAIRED.text)))
    with ScriptedEndpoint(steps, otherwise=answer(in_fence(GOOD.text)), rules=(repair,)) as endpoint:
        code, output = run(
            folder, "run", TWICE, "--device", "emulated", "--evals", "16",
            extra={**endpoint.environment, "EVOLVE_LLM_TIMEOUT": "3"},
        )  # fmt: skip
    return open_archive(folder / ".evolve" / "archive.db"), code, output, endpoint


def outcomes(store: SqliteStore) -> dict[str, Outcome]:
    return {evaluation.kernel_id: evaluation.outcome for evaluation in store.find(Evaluation)}


def test_the_run_succeeds_despite_every_fault(finished: tuple[SqliteStore, int, str, ScriptedEndpoint]) -> None:
    _, code, output, _ = finished
    assert code == 0, output
    assert "scripted-1" in output
    assert "Traceback" not in output


def test_the_models_good_kernel_passes(finished: tuple[SqliteStore, int, str, ScriptedEndpoint]) -> None:
    assert outcomes(finished[0])[GOOD.id] is Outcome.PASSED


def test_the_kernel_that_did_not_compile_fails(finished: tuple[SqliteStore, int, str, ScriptedEndpoint]) -> None:
    assert outcomes(finished[0])[BROKEN.id] is Outcome.COMPILE_ERROR


def test_kernels_that_failed_are_repaired(finished: tuple[SqliteStore, int, str, ScriptedEndpoint]) -> None:
    found = outcomes(finished[0])
    assert found[REPAIRED.id] is Outcome.PASSED
    repairs = [p for p in finished[0].find(Proposal) if p.operator == "repair" and p.kernel_id == REPAIRED.id]
    assert repairs
    assert all(found[parent] is not Outcome.PASSED for repair in repairs for parent in repair.parents)


def test_prose_is_an_archived_failure_with_its_reason(
    finished: tuple[SqliteStore, int, str, ScriptedEndpoint],
) -> None:
    prose = [p for p in finished[0].find(Proposal) if "rather talk" in p.reply]
    assert prose
    assert prose[0].kernel is None
    assert prose[0].failure


def test_harmful_kernels_get_the_right_outcomes(finished: tuple[SqliteStore, int, str, ScriptedEndpoint]) -> None:
    found = outcomes(finished[0])
    assert [found[kernel.id] for kernel in HARMFUL] == [Outcome.WRONG] * 4 + [Outcome.CRASHED]


def test_every_reply_is_archived_with_its_tokens(finished: tuple[SqliteStore, int, str, ScriptedEndpoint]) -> None:
    replies = [p for p in finished[0].find(Proposal) if p.reply]
    assert replies
    assert all(proposal.cost.completion_tokens == 10 for proposal in replies)


def test_the_key_is_nowhere_in_the_archive_or_the_output(
    finished: tuple[SqliteStore, int, str, ScriptedEndpoint],
) -> None:
    store, _, output, endpoint = finished
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    key = endpoint.environment["OPENAI_API_KEY"]
    assert key.encode() not in Path(store.path).read_bytes()
    assert key not in output


@pytest.mark.exhaustive
def test_a_recorded_run_is_replayed_in_its_own_archive_after_other_runs(
    finished: tuple[SqliteStore, int, str, ScriptedEndpoint], tmp_path: Path, emulated_engine: Engine
) -> None:
    original, archive = finished[0], tmp_path / "archive.db"
    original.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copyfile(original.path, archive)
    common = ("run", TWICE, "--device", "emulated", "--archive", str(archive))
    grow = run_here(emulated_engine, tmp_path, *common, "--evals", "3", "--proposer", "offline", "--no-tune")
    assert grow[0] == 0, grow[1]
    (recorded, _) = (store := open_archive(archive)).find(Run)
    before = {evaluation.id for evaluation in store.find(Evaluation)}
    code, output = run_here(emulated_engine, tmp_path, *common, "--replay", recorded.id)
    assert code == 0, output
    replay = store.find(Run)[-1].id
    said = [
        [(p.operator, p.reply, p.kernel_id) for p in store.find(Proposal) if p.run == one]
        for one in (recorded.id, replay)
    ]
    assert said[1] == said[0]
    assert {one.outcome for one in store.find(Evaluation) if one.id not in before} <= {Outcome.DUPLICATE}
    assert "failed its confirmation: passed" not in output


@pytest.mark.exhaustive
def test_minutes_bound_a_run_whose_endpoint_never_answers(tmp_path: Path, emulated_engine: Engine) -> None:
    with ScriptedEndpoint(otherwise=stall()) as endpoint:
        code, output = run_here(
            emulated_engine,
            tmp_path,
            "run",
            TWICE,
            "--device",
            "emulated",
            "--minutes",
            "0.05",
            extra=endpoint.environment,
        )
        assert endpoint.hung_up.wait(10)
    assert "The time is up." in output
    assert code == 1
    failures = {one.failure for one in open_archive(tmp_path / ".evolve" / "archive.db").find(Proposal, "twice")}
    assert failures == {"the deadline passed before an answer arrived"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [(status(500, "the GPU is on fire"), "status 500"), (status(400, "maximum context length is 8192"), "status 400")],
    ids=["500", "context"],
)
def test_a_run_whose_requests_all_fail_says_why_while_it_runs_and_lists_them_afterwards(
    tmp_path: Path, fault: Step, words: str, emulated_engine: Engine
) -> None:
    with ScriptedEndpoint(otherwise=fault) as endpoint:
        code, output = run_here(
            emulated_engine, tmp_path, "run", TWICE, "--device", "emulated", "--evals", "5", extra=endpoint.environment
        )
    assert code == 2, output
    first, *_ = (line for line in output.splitlines() if "no kernel (designs): " in line)
    assert words in first
    store = open_archive(tmp_path / ".evolve" / "archive.db")
    failed = store.find(Proposal, "twice")
    assert f"{len(failed)} requests without a kernel: {len(failed)} x the request failed with {words}" in output
    assert f"answered none of the last {len(failed)} questions: the request failed with {words}" in output
    assert "0 evaluations" in output
    assert f"{len(failed)} x the request failed with {words}" in run_here(emulated_engine, tmp_path, "runs")[1]
    listed = run_here(emulated_engine, tmp_path, "top", "twice", "--failures")[1]
    assert all(proposal.id[:8] in listed for proposal in failed)


def test_a_wait_for_a_server_that_is_busy_is_shown_with_its_reason(tmp_path: Path, emulated_engine: Engine) -> None:
    busy = [status(429, "slow down", retry_after="1")]
    with ScriptedEndpoint(busy, otherwise=answer(in_fence(GOOD.text))) as endpoint:
        _, output = run_here(
            emulated_engine, tmp_path, "run", TWICE, "--device", "emulated", "--evals", "1", extra=endpoint.environment
        )
    assert "waiting: scripted-1 again in 1 s: the request failed with status 429: " in output
    assert "slow down" in output


def test_a_fresh_run_shows_its_own_champions_in_an_archive_with_better_ones(
    tmp_path: Path, emulated_engine: Engine
) -> None:
    (tmp_path / "known.cu").write_text(GOOD.text)
    common = ("--device", "emulated")
    run_here(emulated_engine, tmp_path, "evaluate", "known.cu", TWICE, *common)
    with ScriptedEndpoint(otherwise=answer(in_fence(REPAIRED.text))) as endpoint:
        code, output = run_here(
            emulated_engine, tmp_path, "run", TWICE, "--fresh", "--evals", "2", *common, extra=endpoint.environment
        )
    assert code == 0, output
    assert "a fresh run uses only its own" in output
    assert REPAIRED.id[:8] in output
    assert GOOD.id[:8] not in output
