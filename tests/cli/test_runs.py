"""`evolve runs`, `evolve compare` and `evolve run --resume` over an archive with recorded runs."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import evolve
from records import CPU, GPU, kernel, passed, proposal

from archive.kernel import Proposal
from archive.records import Evaluation, Leg, Outcome
from archive.runs import Budget, Cost, Run
from archive.sqlite import open_archive
from evolve.cli import setups
from evolve.cli.options import RunOptions

ROWS = "rows=8 cols=16 float32"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an archive with two GPU runs (the second finds faster kernels sooner), a campaign, and a run on a CPU."""
    monkeypatch.chdir(tmp_path)
    store = open_archive(tmp_path / "a.db")
    for run, speed, start in (("aaaa1111", 10.0, 0.0), ("bbbb2222", 5.0, 1000.0)):
        store.append(Run(run, "softmax", GPU.key, "a model", 7, start, budget=Budget(evals=4)), Leg(run, start))
        for n in range(4):
            made = kernel(int(start) + n)
            offered = replace(
                proposal(made, run=run), created=start + n + 1, cost=Cost(100, 50, usd=0.01), reply="text"
            )
            store.append(offered, passed(made.id, GPU, start + n + 1.5, **{ROWS: 100 - speed * n}))
    store.append(Run("cccc3333", "gelu", GPU.key, "offline", 7, 2000.0, campaign="dddd4444"))
    store.append(Run("cccc4444", "softmax", GPU.key, "offline", 7, 2000.0, campaign="dddd4444"))
    store.append(Run("eeee5555", "softmax", CPU.key, "offline", 7, 3000.0))
    store.close()
    return tmp_path / "a.db"


def test_every_run_is_listed_with_its_costs(archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, output, _ = evolve(capsys, "runs", "--archive", archive)
    assert code == 0
    line = next(line for line in output.splitlines() if line.startswith("aaaa1111"))
    for expected in ("softmax", "a model", "evolve", "4", "600", "$0.0400", "0:04", "1.43x"):
        assert expected in line
    assert "dddd4444" in output


def test_a_cached_list_is_the_same_and_follows_later_verdicts(archive: Path, capsys: Capture) -> None:
    first, second = (json.loads(evolve(capsys, "runs", "softmax", "--json", "--archive", archive)[1]) for _ in range(2))
    assert first == second
    (made,) = (one.kernel_id for one in open_archive(archive).find(Proposal, run="aaaa1111")[-1:])
    open_archive(archive).append(passed(made, GPU, 5000.0, **{ROWS: 10.0}))
    later = json.loads(evolve(capsys, "runs", "softmax", "--json", "--archive", archive)[1])
    best = [{one["run"]: one["best_speedup"] for one in found}["aaaa1111"] for found in (first, later)]
    assert best == [pytest.approx(100 / 70), pytest.approx(10.0)]


def test_runs_can_be_limited_to_one_op_and_printed_as_json(archive: Path, capsys: Capture) -> None:
    _, output, _ = evolve(capsys, "runs", "gelu", "--json", "--archive", archive)
    (run,) = json.loads(output)
    assert (run["run"], run["campaign"], run["spent"]["evals"]) == ("cccc3333", "dddd4444", 0)


def test_runs_of_a_campaign_that_the_budget_did_not_reach_are_counted(
    archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    _, output, _ = evolve(capsys, "runs", "--archive", archive)
    assert [line.split()[0] for line in output.splitlines()[1:4]] == ["aaaa1111", "bbbb2222", "eeee5555"]
    assert "campaign dddd4444 has spent nothing on 2 other ops" in output
    assert "cccc3333" in evolve(capsys, "runs", "gelu", "--archive", archive)[1]


def test_a_campaign_that_spent_nothing_is_listed(tmp_path: Path, capsys: Capture) -> None:
    store = open_archive(tmp_path / "a.db")
    store.append(Run("cccc3333", "gelu", GPU.key, "offline", 7, 2000.0, campaign="dddd4444"))
    store.close()
    _, output, _ = evolve(capsys, "runs", "--archive", tmp_path / "a.db")
    assert output.splitlines()[1].startswith("cccc3333")
    assert "has spent nothing" not in output


def test_a_run_without_a_passing_kernel_of_its_own_has_a_note(
    archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    made, why = kernel(77), "shipped kernels do not count"
    assert why not in evolve(capsys, "runs", "--archive", archive)[1]
    store = open_archive(archive)
    store.append(Run("ffff6666", "softmax", GPU.key, "offline", 7, 4e3), Leg("ffff6666", 4e3))
    offered = replace(proposal(made, run="ffff6666"), created=4001.0)
    store.append(offered, replace(passed(made.id, GPU, 4001.5), outcome=Outcome.WRONG))
    store.close()
    assert why in evolve(capsys, "runs", "--archive", archive)[1]


def test_a_replay_cannot_be_resumed_and_the_hint_replays_it_again(archive: Path, capsys: Capture) -> None:
    run = Run("ffff6666", "topk", GPU.key, "a model", 7, 4e3, words=("topk", "--replay", "aaaa1111"))
    open_archive(archive).append(run)
    code, output, errors = evolve(capsys, "run", "--resume", "ffff6666", "--archive", str(archive))
    assert (code, output) == (2, "")
    assert "run ffff6666 replays run aaaa1111, and a replay cannot be continued" in " ".join(errors.split())
    assert "evolve run topk --replay aaaa1111" in " ".join(errors.split())


def test_a_replay_is_marked(archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    store = open_archive(archive)
    store.append(Run("ffff6666", "topk", GPU.key, "a model", 7, 4e3, words=("topk", "--replay", "aaaa1111")))
    store.close()
    output = evolve(capsys, "runs", "--archive", archive)[1]
    assert [line.split()[0] for line in output.splitlines() if " replay," in line] == ["ffff6666"]
    assert "replay: the answers come from the archive" in output
    (run,) = json.loads(evolve(capsys, "runs", "topk", "--json", "--archive", archive)[1])
    assert run["replay_of"] == "aaaa1111"


def test_an_op_without_runs_exits_with_code_1(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "runs", "topk", "--archive", archive)
    assert code == 1
    assert "evolve run topk" in errors


def test_runs_without_a_passing_kernel_have_no_plot(archive: Path, capsys: Capture) -> None:
    store = open_archive(archive)
    for run in ("ffff6666", "ffff7777"):
        store.append(Run(run, "softmax", GPU.key, "a model", 7, 4000.0), Leg(run, 4000.0))
        made = kernel(int(run[4:]))
        store.append(replace(proposal(made, run=run), created=4001.0))
        store.append(Evaluation(made.id, "softmax", GPU, Outcome.WRONG, "off", created=4002.0))
    store.close()
    code, output, _ = evolve(capsys, "compare", "ffff6666", "ffff7777", "--archive", archive)
    assert code == 0
    assert "best so far per evaluation" in output
    assert "│" not in output


def test_two_runs_are_compared_per_evaluation_token_and_dollar(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "compare", "aaaa", "bbbb", "--archive", archive)
    assert code == 0
    for expected in ("softmax on Some GPU", "best so far per evaluation", "per token", "per dollar", "1.43x", "1.18x"):
        assert expected in output


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_comparison_fits_the_terminal(
    archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, output, _ = evolve(capsys, "compare", "aaaa", "bbbb", "--archive", archive)
    assert max(map(len, output.splitlines())) <= int(columns)


def test_a_comparison_as_json_has_the_points_and_the_rows(archive: Path, capsys: Capture) -> None:
    _, output, _ = evolve(capsys, "compare", "aaaa", "bbbb", "--json", "--archive", archive)
    facts = json.loads(output)
    assert [row["evals"] for row in facts["per_evaluation"]] == [1, 1, 2, 4]
    assert facts["per_token"][-1]["quality"]["aaaa1111"] == pytest.approx(100 / 70)
    assert facts["runs"][0]["points"][-1] == {
        "evals": 4,
        "tokens": 600,
        "usd": 0.04,
        "quality": pytest.approx(100 / 70),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare aaaa", "two or more"),
        ("compare aaaa aaaa1111", "two or more"),
        ("compare aaaa cccc3333", "different ops"),
        ("compare aaaa eeee", "different devices"),
        ("compare aaaa zzzz", "no run's id begins with `zzzz`"),
        ("compare aaaa dddd", "cccc3333 (gelu), cccc4444 (softmax)"),
        ("compare aaaa cccc", "cccc3333 (gelu), cccc4444 (softmax)"),
        ("run softmax --resume e9", "no run's id begins with"),
        ("run softmax --resume zzzz", "`evolve runs` lists"),
        ("run gelu --resume aaaa", "run aaaa1111 evolves softmax, not gelu"),
        ("run softmax --resume aaaa --seed 8", "started with --seed 7, got 8"),
        ("run softmax --resume aaaa --strategy best-of-n", "leave out --strategy"),
        ("run softmax --resume aaaa --proposer llm", "leave out --proposer"),
        ("run softmax --resume aaaa --device emulated", "leave out --device"),
        ("run topk --resume last", "no run of topk yet"),
        ("run gelu --resume last", "campaign dddd4444 shares one budget among 2 ops"),
        ("run gelu --resume dddd", "leave out the ops to resume all of it: --resume dddd4444"),
        ("run --all --resume last", "leave out --all"),
        ("run softmax --replay eeee", "has no model answers to replay"),
        ("run gelu --replay aaaa", "run aaaa1111 evolves softmax, not gelu"),
    ],
)
def test_runs_that_cannot_be_compared_or_resumed_are_explained(
    archive: Path, capsys: Capture, arguments: str, message: str
) -> None:
    code, _, errors = evolve(capsys, *arguments.split(), "--archive", archive)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_a_run_that_asked_a_model_is_not_resumed_without_one(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "run", "--resume", "aaaa", "--evals", "9", "--archive", archive)
    assert code == 2
    assert "no language model is configured" in errors


def test_a_run_without_a_model_is_resumed_without_one_although_a_key_is_set(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-paid")
    setup = setups.resumed("eeee", (), RunOptions(), Budget(evals=9), archive)
    assert setup.run_options.proposer == "offline"


def test_the_best_of_each_run_is_the_largest_ratio_of_its_kernels_that_passed_last(
    tmp_path: Path, capsys: Capture
) -> None:
    rng, best = random.Random(7), dict[str, float]()
    store = open_archive(tmp_path / "a.db")
    # PyTorch's time on the GPU, and the first kernel's on the CPU
    for device, first_us in ((GPU, 100.0), (CPU, 640.0)):
        store.append(proposal(kernel(99), run=""), passed(kernel(99).id, CPU, 0.5, **{ROWS: 640.0}))
        for name in (f"aaaa{device.kind}", f"bbbb{device.kind}"):
            store.append(Run(name, "softmax", device.key, "offline", 7, 1.0))
            for _ in range(9):
                made, us, created = kernel(rng.randrange(1000)), rng.uniform(10, 90), rng.uniform(2, 90)
                again = replace(passed(made.id, device, created + 1, **{ROWS: us}), outcome=rng.choice([*Outcome][:2]))
                store.append(replace(proposal(made, run=name), created=created),
                             passed(made.id, device, created, **{ROWS: 5.0}), again)  # fmt: skip
                best[name] = max(best.get(name, 0.0), first_us / us if again.passed else 0.0)
    store.close()
    listed = csv.DictReader(evolve(capsys, "runs", "--csv", "--archive", tmp_path / "a.db")[1].splitlines())
    assert {row["run"]: float(row["best"]) for row in listed} == pytest.approx(best, abs=0.01)
