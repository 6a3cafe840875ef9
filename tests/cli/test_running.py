"""`run` and `evaluate` as a user starts them, on the emulated device."""

import json
import re
import signal
import time
from pathlib import Path

import pytest
from bad_kernels import twice_kernel
from command import TWICE, run, start
from commandline import written

from archive.kernel import Kernel
from archive.proposals import Budget, Run
from archive.records import Evaluation
from archive.store import open_archive
from evolve.cli.app import main
from evolve.selection.population import champions, latest

EMULATED = ("--device", "emulated")
GOOD, WRONG = twice_kernel(note="good"), twice_kernel("out[i] = x[i];", note="wrong")


def told(folder: Path, kernel: Kernel) -> None:
    """By `evolve tell`, in this process."""
    file, archive = written(folder / "told.cu", kernel), folder / ".evolve/archive.db"
    assert main(["tell", str(file), TWICE, "--archive", str(archive)]) == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    folder = tmp_path_factory.mktemp("run")
    return (folder, *run(folder, "run", "gelu", "--evals", "3", *EMULATED))


def test_a_run_ends_with_a_table_of_champions(finished: tuple[Path, int, str]) -> None:
    _, code, output = finished
    assert code == 0, output
    assert "no statement about a GPU" in output
    assert re.search(r"8192 fp32 +[0-9a-f]{8} +\d", output)
    assert "All 3 evaluations are used" in output
    assert "evolve top gelu" in output


def test_a_run_confirms_its_champions_before_it_ends(finished: tuple[Path, int, str]) -> None:
    folder, _, output = finished
    assert re.search(r"[0-9a-f]{8} confirmed[:;] ", output)
    evaluations = open_archive(folder / ".evolve/archive.db").find(Evaluation)
    leading = champions(latest(evaluations, evaluations[0].device.key).values())
    assert leading
    assert all(champion.confirmed for champion in leading)
    assert "nothing is left to confirm" in run(folder, "confirm", "gelu", *EMULATED)[1]


def test_a_run_says_first_what_it_runs_on(finished: tuple[Path, int, str]) -> None:
    lines = finished[2].splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["device", "proposer", "archive", "run"]


def test_a_run_that_is_over_says_what_gives_it_more(finished: tuple[Path, int, str]) -> None:
    (run,) = open_archive(finished[0] / ".evolve/archive.db").find(Run)
    assert run.budget == Budget(evals=3)
    assert f"More: evolve run gelu --device emulated --resume {run.id} --evals 6" in finished[2]


def test_a_run_goes_on_with_what_is_left_of_a_larger_budget(finished: tuple[Path, int, str]) -> None:
    code, output = run(finished[0], "run", "--resume", "last", "--evals", "4")
    assert code == 0, output
    assert re.search(r"run +[0-9a-f]{8}, 0:\d\d, 3 evaluations spent so far", output)
    assert "All 4 evaluations are used" in output
    evaluations = open_archive(finished[0] / ".evolve/archive.db").find(Evaluation)
    assert len({evaluation.kernel_id for evaluation in evaluations}) == 4


def test_the_same_command_goes_on(finished: tuple[Path, int, str]) -> None:
    code, output = run(finished[0], "run", "gelu", "--evals", "1", *EMULATED)
    assert code == 0
    assert "4 evaluated on this device" in output
    evaluations = open_archive(finished[0] / ".evolve/archive.db").find(Evaluation)
    assert len({evaluation.kernel_id for evaluation in evaluations}) == 5


def test_several_ops_share_one_budget_and_the_archive_tells_what_went_where(tmp_path: Path) -> None:
    told(tmp_path, GOOD)
    code, output = run(tmp_path, "run", TWICE, "gelu", "--evals", "5", "--proposer", "offline", *EMULATED)
    assert code == 0, output
    assert re.search(r"all +5 +\d:\d\d", output)
    runs = open_archive(tmp_path / ".evolve/archive.db").find(Run)
    assert [one.op for one in runs] == ["twice", "gelu"]
    assert len({one.campaign for one in runs}) == 1
    assert f"--resume {runs[0].campaign} --evals 10" in output
    assert runs[0].words == (TWICE, "--device", "emulated", "--proposer", "offline")


def test_ops_that_a_short_budget_does_not_reach_are_counted(tmp_path: Path) -> None:
    code, output = run(tmp_path, "run", "relu", "gelu", "tanh", "--evals", "1", "--proposer", "offline", *EMULATED)
    assert code == 0, output
    assert len(re.findall(r"^(relu|gelu|tanh) +\d+ +\d:\d\d", output, re.MULTILINE)) == 1
    assert "nothing was spent on 2 other ops" in output


def test_the_result_of_a_run_is_json_on_standard_output_alone(tmp_path: Path) -> None:
    told(tmp_path, GOOD)
    code, output = run(tmp_path, "run", TWICE, "--evals", "1", "--proposer", "offline", "--json", *EMULATED)
    assert code == 0
    result = json.loads(output[output.index("\n{") :])
    assert result["champions"][0]["kernel"] == GOOD.id
    assert (result["ended"], result["spent"]["evals"]) == ("evals", 1)


def test_a_run_with_nothing_to_vary_says_how_to_get_kernels(tmp_path: Path) -> None:
    code, output = run(tmp_path, "run", TWICE, "--proposer", "offline", *EMULATED)
    assert code == 1
    assert "nothing to vary" in output
    assert "OPENAI_API_KEY" in output
    assert f"`evolve tell FILE.cu {TWICE}`" in output
    assert "everything that is alive" not in output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_where_things_stand_and_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    process = start(tmp_path, "run", "softmax", *EMULATED)
    archive = tmp_path / ".evolve/archive.db"
    deadline = time.monotonic() + 120
    while not (archive.exists() and open_archive(archive).find(Evaluation)) and time.monotonic() < deadline:
        time.sleep(0.3)
    process.send_signal(number)
    process.send_signal(number)  # the second one must not keep the first from putting things in order
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "softmax on" in output
    (found,) = open_archive(archive).find(Run)
    assert f"To go on from here: evolve run softmax --device emulated --resume {found.id}" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("seconds", [0.1, 0.4, 1.5])
def test_a_run_stopped_while_it_starts_ends_quietly(tmp_path: Path, seconds: float) -> None:
    process = start(tmp_path, "run", "softmax", *EMULATED)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    if process.returncode == 130:
        assert "Traceback" not in output
    elif process.returncode != -signal.SIGINT:  # before our own first line it is Python's to end it, with 1 or this
        assert (process.returncode, "KeyboardInterrupt" in output) == (1, True), output


def test_kernels_in_files_are_evaluated_at_once(tmp_path: Path) -> None:
    written(tmp_path / "good.cu", GOOD)
    written(tmp_path / "wrong.cu", WRONG)
    code, output = run(tmp_path, "evaluate", "good.cu", "wrong.cu", TWICE, *EMULATED)
    assert code == 0, output
    assert "[2/2]" in output
    assert f"{GOOD.id[:8]}\nOn " in output
    assert "wrong:" in output


def test_a_wrong_kernel_alone_is_exit_code_1_with_the_reason(tmp_path: Path) -> None:
    code, output = run(tmp_path, "evaluate", str(written(tmp_path / "wrong.cu", WRONG)), TWICE, *EMULATED)
    assert code == 1
    assert "rounding" in output


def test_pending_kernels_of_an_op_outside_the_catalog_are_named(tmp_path: Path) -> None:
    told(tmp_path, GOOD)
    code, output = run(tmp_path, "evaluate", *EMULATED)
    assert code == 1
    assert "twice is not in the catalog" in output
    assert "Traceback" not in output
