"""`run` and `evaluate` on the emulated device, in this process; runs that are stopped have separate processes."""

import json
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bad_kernels import twice_kernel
from command import TWICE, start
from commandline import evolve, written
from each import sampled
from fake_engine import AllAtOnce, FakeEngine, use_as_gpu, verdict
from records import GPU, passed
from shared_engine import run_here

from archive.kernel import Kernel, Proposal
from archive.library import shipped
from archive.records import Evaluation
from archive.runs import Budget, Run
from archive.sqlite import open_archive
from evolve import wiring
from evolve.cli.app import main
from evolve.engines.engine import Engine, Job
from evolve.selection.population import champions, latest
from reference_ops import catalog

Capture = pytest.CaptureFixture[str]
EMULATED = ("--device", "emulated")
OFFLINE = ("--proposer", "offline", *EMULATED)
ARCHIVE = Path(".evolve/archive.db")
KERNEL_OF_DOUBLED = """/*---
op = "doubled"
[[launch]]
entry = "doubled"
grid = ["ceil_div(x_0 * x_1, 128)"]
block = [128]
args = ["x", "out", "x_0", "x_1"]
---*/
extern "C" __global__ void doubled(const x_t* x, out_t* out, int rows, int cols) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < rows * cols) out[i] = out_t(LISTED ? 2.0f * float(x[i]) : 0.0f);
}
"""
GOOD, WRONG = twice_kernel(note="good"), twice_kernel("out[i] = x[i];", note="wrong")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tell(kernel: Kernel) -> None:
    """Add a kernel of `twice` to the archive of the current folder."""
    assert main(["tell", str(written(Path("told.cu"), kernel)), TWICE]) == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, emulated_engine: Engine) -> tuple[Path, int, str]:
    """Return the folder of a run that has ended, its exit code and its output."""
    folder = tmp_path_factory.mktemp("run")
    return (folder, *run_here(emulated_engine, folder, "run", "gelu", "--evals", "2", *EMULATED))


def test_a_run_ends_with_a_table_of_champions(finished: tuple[Path, int, str]) -> None:
    _, code, output = finished
    assert code == 0, output
    assert "speed can be measured only on a GPU" in output
    assert re.search(r"8192 fp32 +[0-9a-f]{8} +correct +\d", output)
    assert "All 2 evaluations are used" in output
    assert "evolve top gelu" in output


@pytest.mark.usefixtures("shared_engine")
def test_a_run_confirms_its_champions_before_it_ends(
    finished: tuple[Path, int, str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert re.search(r"[0-9a-f]{8} confirmed[:;] ", finished[2])
    monkeypatch.chdir(finished[0])
    evaluations = open_archive(ARCHIVE).find(Evaluation)
    leading = champions(latest(evaluations, evaluations[0].device.key).values())
    assert leading
    assert all(champion.confirmed for champion in leading)
    assert "nothing is left to confirm" in evolve(capsys, "confirm", "gelu", *EMULATED)[1]


def test_a_run_begins_with_its_device_proposer_archive_and_id(finished: tuple[Path, int, str]) -> None:
    lines = finished[2].splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["device", "proposer", "archive", "run"]


def test_a_finished_run_prints_the_command_that_continues_it(finished: tuple[Path, int, str]) -> None:
    (recorded,) = open_archive(finished[0] / ARCHIVE).find(Run)
    assert recorded.budget == Budget(evals=2)
    assert f"To continue: evolve run gelu --device emulated --resume {recorded.id} --evals 4" in finished[2]


@pytest.mark.usefixtures("shared_engine")
def test_a_resumed_run_spends_the_rest_of_a_larger_budget_and_a_new_run_adds_kernels(
    finished: tuple[Path, int, str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(finished[0])
    code, output, _ = evolve(capsys, "run", "--resume", "last", "--evals", "3")
    assert code == 0, output
    assert re.search(r"run +[0-9a-f]{8}, 0:\d\d, 2 evaluations spent so far", output)
    assert "All 3 evaluations are used" in output
    assert len({evaluation.kernel_id for evaluation in open_archive(ARCHIVE).find(Evaluation)}) == 3

    code, output, _ = evolve(capsys, "run", "gelu", "--evals", "1", *EMULATED)
    assert code == 0, output
    assert "3 evaluated on this device" in output
    assert len({evaluation.kernel_id for evaluation in open_archive(ARCHIVE).find(Evaluation)}) == 4


@pytest.mark.usefixtures("folder", "shared_engine")
def test_several_ops_share_one_budget_and_each_has_a_run_in_the_archive(capsys: Capture) -> None:
    tell(GOOD)
    code, output, _ = evolve(capsys, "run", TWICE, "gelu", "--evals", "4", *OFFLINE)
    assert code == 0, output
    assert re.search(r"all +4 +\d:\d\d", output)
    runs = open_archive(ARCHIVE).find(Run)
    assert [one.op for one in runs] == ["twice", "gelu"]
    assert len({one.campaign for one in runs}) == 1
    assert f"--resume {runs[0].campaign} --evals 8" in output
    assert runs[0].words == (TWICE, "--device", "emulated", "--proposer", "offline")


@pytest.mark.usefixtures("folder", "shared_engine")
def test_ops_that_get_no_share_of_a_small_budget_are_counted(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "run", "relu", "gelu", "tanh", "--evals", "1", *OFFLINE)
    assert code == 0, output
    assert len(re.findall(r"^(relu|gelu|tanh) +\d+ +\d:\d\d", output, re.MULTILINE)) == 1
    assert "nothing was spent on 2 other ops" in output


@pytest.mark.usefixtures("folder", "shared_engine")
def test_standard_output_contains_only_the_json_result_of_a_run(capsys: Capture) -> None:
    tell(GOOD)
    capsys.readouterr()
    code, output, _ = evolve(capsys, "run", TWICE, "--evals", "1", "--json", *OFFLINE)
    assert code == 0
    result = json.loads(output)
    assert result["champions"][0]["kernel"] == GOOD.id
    assert (result["ended"], result["spent"]["evals"]) == ("evals", 1)


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_run_without_kernels_to_vary_says_how_to_get_some(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "run", TWICE, *OFFLINE)
    assert code == 1
    assert "no kernel to vary" in output
    assert "OPENAI_API_KEY" in output
    assert f"`evolve tell FILE.cu {TWICE}`" in output
    assert "all kernels that are alive" not in output


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_share_of_the_speed_of_light_needs_a_gpu(capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "run", "softmax", "--until-sol", "0.9", *OFFLINE)
    assert code == 2
    assert "the emulated device has no speed of light" in errors
    assert "leave out --until-sol" in errors


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_prints_its_results_and_the_command_that_continues_it(
    tmp_path: Path, number: int, code: int
) -> None:
    process = start(tmp_path, "run", "gelu", *EMULATED)
    archive = tmp_path / ARCHIVE
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if archive.exists() and open_archive(archive).find(Evaluation, shipped=False):
            break
        time.sleep(0.3)
    process.send_signal(number)
    process.send_signal(number)  # the second signal must not interrupt the clean-up
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "gelu on" in output
    (found,) = open_archive(archive).find(Run)
    assert f"To continue: evolve run gelu --device emulated --resume {found.id}" in output
    assert "Traceback" not in output


@pytest.mark.usefixtures("folder")
def test_a_run_prints_its_results_if_the_signal_became_an_error_of_the_engine(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray turns any exception that is raised while it packs a message into its own."""

    def interrupted(job: Job) -> Evaluation:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as stopped:
            raise TypeError("cannot pack the message") from stopped
        return passed(job.kernel.id)

    monkeypatch.setattr(wiring, "engine", lambda *_: FakeEngine(interrupted))
    code, output, _ = evolve(capsys, "run", "gelu", *EMULATED)
    assert code == 130
    assert "0 evaluations" in output
    assert "stopped. To continue: evolve run gelu" in output


@pytest.mark.parametrize("seconds", sampled([0.1, 0.4, 1.5], quick=[0.4]))
def test_a_run_stopped_during_startup_ends_quietly(tmp_path: Path, seconds: float) -> None:
    process = start(tmp_path, "run", "softmax", *EMULATED)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    if process.returncode == 130:
        assert "Traceback" not in output
    # if Python ends the process before evolve's first line, the exit code is this one or 1
    elif process.returncode != -signal.SIGINT:
        assert (process.returncode, "KeyboardInterrupt" in output) == (1, True), output


@pytest.mark.usefixtures("folder", "shared_engine")
def test_kernels_in_files_are_evaluated_directly(capsys: Capture) -> None:
    written(Path("good.cu"), GOOD)
    written(Path("wrong.cu"), WRONG)
    code, output, _ = evolve(capsys, "evaluate", "good.cu", "wrong.cu", TWICE, *EMULATED)
    assert code == 0, output
    assert "[2/2]" in output
    assert f"{GOOD.id[:8]}\nOn " in output
    assert "wrong:" in output


@pytest.mark.usefixtures("folder")
def test_the_kernels_of_several_ops_reach_the_engine_together(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    engine = AllAtOnce(lambda job: verdict(job, device=GPU), GPU)
    use_as_gpu(engine, monkeypatch)
    files = [written(Path(f"{op}.cu"), shipped(op)[0]) for op in ("gelu", "relu")]
    code, output, _ = evolve(capsys, "evaluate", *map(str, files))
    assert code == 0, output
    assert engine.streams == [["gelu", "relu"]]
    assert "2 ops: 2 kernels to evaluate on" in output
    assert "[1/2] gelu: " in output
    assert "[2/2] relu: " in output


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_single_wrong_kernel_exits_with_code_1_and_the_reason(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "evaluate", written(Path("wrong.cu"), WRONG), TWICE, *EMULATED)
    assert code == 1
    assert "rounding" in output


@pytest.mark.usefixtures("folder", "shared_engine")
def test_pending_kernels_of_an_op_outside_the_catalog_are_named(capsys: Capture) -> None:
    tell(GOOD)
    code, _, errors = evolve(capsys, "evaluate", *EMULATED)
    assert code == 1
    assert "twice is not in the catalog" in errors


@pytest.mark.usefixtures("folder", "shared_engine")
def test_evaluate_includes_kernels_that_a_gpu_has_judged_only_if_their_op_is_named(capsys: Capture) -> None:
    made = shipped("gelu")[0]
    store = open_archive(ARCHIVE)
    store.append(Proposal("gelu", "seed", "tell", made, created=1.0), replace(passed(made.id, GPU, w=1.0), op="gelu"))
    store.close()
    code, _, errors = evolve(capsys, "evaluate", *EMULATED)
    assert (code, "nothing to evaluate" in errors) == (1, True)
    assert "1 kernel to evaluate" in evolve(capsys, "evaluate", "gelu", *EMULATED)[1]


@pytest.mark.usefixtures("folder", "shared_engine")
def test_a_kernel_that_is_right_only_at_the_listed_sizes_of_a_function_is_wrong(capsys: Capture) -> None:
    Path("functions.py").write_text("def doubled(x):\n    return x * 2\n")
    Path("inputs.py").write_text("import torch\nexamples = [lambda: (torch.randn(40, 512),)]\n")
    locator = "functions.py:doubled@inputs.py"
    listed = {dict(workload.dims)["x_1"] for workload in catalog.load(locator).listed}
    kernel = KERNEL_OF_DOUBLED.replace("LISTED", " || ".join(f"cols == {size}" for size in listed))
    Path("cheat.cu").write_text(kernel)
    Path("honest.cu").write_text(kernel.replace("cols == 512", "true"))
    _, output, _ = evolve(capsys, "evaluate", "cheat.cu", "honest.cu", locator, *EMULATED)
    assert "1 passed, 1 wrong" in output
