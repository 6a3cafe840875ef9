"""Files that end, crash or block the process that loads them: a command reports each in one line."""

import os
import sys
from pathlib import Path

import pytest
from commandline import evolve
from processes import all_gone

from archive.sqlite import open_archive
from evolve.engines import trial
from evolve.errors import UserError
from reference_ops import catalog
from reference_ops.catalog import CatalogError

DEFINED = "\n\ndef fused(x):\n    return x + 1\n"
INPUTS = "import torch\nexamples = [lambda: (torch.randn(4, 8),), lambda: (torch.randn(8, 4),)]\n"
FAULTS = {
    "import os\n\nos._exit(3)": r"mymodule\.py, line 3, ends the process that loads it with exit status 3",
    "import os\nos._exit(0)": r"mymodule\.py, line 2, ends the process that loads it with exit status 0",
    "import ctypes\nctypes.string_at(0)": r"mymodule\.py, line 2, crashes the process that loads it \(SIGSEGV\)",
    "import os\nos.abort()": r"mymodule\.py, line 2, crashes the process that loads it \(SIGABRT\)",
    "import os\nos.kill(os.getpid(), 9)": r"crashes the process that loads it \(SIGKILL, perhaps for lack of memory\)",
    "import time\n\ndef f():\n    time.sleep(1e6)\nf()": r"mymodule\.py, line 4, is not loaded after 0\.5 s",
    "while True: pass": r"mymodule\.py, line 1, is not loaded after 0\.5 s",
    "raise KeyboardInterrupt": r"mymodule\.py raises KeyboardInterrupt while it is loaded",
}


def program(folder: Path, text: str, inputs: str = INPUTS) -> str:
    (folder / "mymodule.py").write_text(text + DEFINED)
    (folder / "inputs.py").write_text(inputs)
    return f"{folder}/mymodule.py:fused@{folder}/inputs.py"


@pytest.mark.parametrize("text", FAULTS)
def test_the_error_names_the_action_of_a_file_and_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    if "is not loaded" in FAULTS[text]:
        monkeypatch.setenv(trial.LIMIT_VARIABLE, "0.5")
    with pytest.raises(UserError, match=FAULTS[text]) as error:
        trial.load(program(tmp_path, text))
    assert error.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "import os\nfrom torch import nn\nclass Model(nn.Module):\n    def forward(self):\n        os._exit(1)\n",
        "import os\nfrom torch import nn\nclass Model(nn.Module):\n    def __init__(self):\n        os._exit(1)\n",
    ],
)
def test_a_task_that_ends_the_process_when_it_is_traced_is_found_too(tmp_path: Path, text: str) -> None:
    (tmp_path / "1_Task.py").write_text(f"{text}\ndef get_inputs():\n    return []\n")
    with pytest.raises(UserError, match=r"1_Task\.py, line 5, ends the process that loads it with exit status 1"):
        trial.load(f"{tmp_path}/1_Task.py")


def test_an_op_file_and_a_file_of_examples_are_tried_too(tmp_path: Path) -> None:
    (tmp_path / "my_op.py").write_text("import os\nos._exit(1)\nop = None\n")
    with pytest.raises(UserError, match=r"my_op\.py, line 2, ends"):
        trial.load(f"{tmp_path}/my_op.py")
    with pytest.raises(UserError, match=r"mymodule\.py \(.*inputs\.py, line 1\) ends"):
        trial.load(program(tmp_path, "", "import os; os._exit(1)"))


def test_a_correct_file_is_loaded_and_its_errors_are_not_changed(tmp_path: Path) -> None:
    assert trial.load(program(tmp_path, "print('hello')")).name == "fused"
    with pytest.raises(CatalogError, match=r"mymodule\.py, line 1, cannot be an op: ZeroDivisionError"):
        trial.load(program(tmp_path, "1 / 0"))


def test_a_thread_that_would_keep_the_command_from_ending_is_found(tmp_path: Path) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), name='endless').start()"
    with pytest.raises(UserError, match=r"mymodule\.py starts a thread that keeps running \(endless\)"):
        trial.load(program(tmp_path, text))


def test_a_file_that_reads_input_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"mymodule\.py, line 1, cannot be an op: EOFError"):
        trial.load(program(tmp_path, "input('name? ')"))


def test_output_of_a_file_is_not_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial.load(program(tmp_path, "print('hello')"))
    assert capsys.readouterr() == ("", "hello\n")


def test_other_work_is_done_while_a_file_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[str]()
    assert trial.load(program(tmp_path, ""), lambda: done.append("work")).name == "fused"
    assert done == ["work"]
    monkeypatch.setenv(trial.LIMIT_VARIABLE, "0.5")
    with pytest.raises(UserError, match="is not loaded after"):
        trial.load(program(tmp_path, "while True: pass"), lambda: done.append("more"))
    assert done == ["work", "more"]


def test_a_changed_file_is_tried_again(tmp_path: Path) -> None:
    locator = program(tmp_path, "")
    assert trial.load(locator)
    program(tmp_path, "import os\nos._exit(1)")
    with pytest.raises(UserError, match="line 2, ends"):
        trial.load(locator)


def test_an_op_of_the_catalog_is_loaded_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert trial.load("softmax") is catalog.load("softmax")


def test_processes_that_a_file_starts_end_with_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trial.LIMIT_VARIABLE, "1")
    started = "import pathlib, subprocess, time\nstarted = subprocess.Popen(['sleep', '1000'])"
    written = f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(started.pid))"
    text = f"{started}\n{written}\ntime.sleep(1e6)"
    with pytest.raises(UserError, match="line 4, is not loaded"):
        trial.load(program(tmp_path, text))
    assert all_gone({int((tmp_path / "pid").read_text())})


@pytest.mark.parametrize("limit", ["soon", "-1", "0", "inf", "nan"])
def test_a_limit_that_is_not_a_number_of_seconds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv(trial.LIMIT_VARIABLE, limit)
    with pytest.raises(UserError, match=f"{trial.LIMIT_VARIABLE} must be a number of seconds, got {limit}"):
        trial.load(program(tmp_path, f"# {limit}"))


def test_a_module_is_found_without_running_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_folder").mkdir()
    (tmp_path / "outer_folder/__init__.py").write_text("import os\nos._exit(7)\n")
    program(tmp_path / "outer_folder", "")
    monkeypatch.chdir(tmp_path)
    assert catalog.locate("outer_folder.mymodule:fused") == tmp_path / "outer_folder/mymodule.py"
    assert "outer_folder" not in sys.modules
    with pytest.raises(UserError, match=r"outer_folder/__init__\.py, line 2\) ends the process"):
        trial.load("outer_folder.mymodule:fused@outer_folder/inputs.py")


@pytest.mark.parametrize("command", ["run", "ask", "confirm", "evaluate", "export", "ops", "tell k.cu"])
def test_every_command_reports_a_file_that_ends_the_process(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locator = program(tmp_path, "import os\nos._exit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(tmp_path / "archive.db"))
    (tmp_path / "k.cu").write_text('/*---\nop = "fused"\n---*/')
    open_archive(tmp_path / "archive.db")
    code, _, errors = evolve(capsys, *command.split(), locator)
    assert code == 2
    assert "mymodule.py, line 2, ends the process that loads it with exit status 0" in errors.replace("\n       ", " ")
