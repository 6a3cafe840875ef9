"""Usage errors: exit code 2 and two lines (what is wrong, and what to do), never a traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, environment
from commandline import BEST, evolve, filled, written
from records import kernel

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("EVOLVE_ARCHIVE", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    Path("words.db").write_text("words, many words" * 99)
    Path("no_op.py").write_text("x = 1\n")
    Path("broken.py").write_text("def f(:\n")
    Path("notes.txt").write_text("notes")
    Path("nothing.jsonl").write_text("")
    Path("no_plan.cu").write_text("__global__ void f() {}")
    written(Path("stranger.cu"), kernel(1, op="unheard_of"))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("top --archive nowhere.db", "there is no archive at nowhere.db"),
        ("show abc --archive nowhere.db", "there is no archive"),
        ("top --archive words.db", "not a database"),
        ("top --archive .", "cannot open the archive"),
        ("run sofmax", "softmax"),
        ("run nowhere.py", "nowhere.py"),
        ("run no_op.py", "no `op`"),
        ("run broken.py", "broken.py, line 1"),
        ("run softmax --device tpu", "cuda, emulated"),
        ("run softmax --proposer me", "offline or llm"),
        ("run softmax --proposer llm", "OPENAI_API_KEY"),
        ("run softmax --model gpt-5", "OPENAI_API_KEY"),
        ("run softmax --minutes -3", "--minutes must be greater than 0, got -3"),
        ("run softmax --minutes 0", "--minutes must be greater than 0, got 0"),
        ("run softmax --minutes nan", "--minutes must be greater than 0, got nan"),
        ("run softmax --minutes inf", "--minutes must be less than 1e+15, got inf"),
        ("run softmax --evals none", "--evals"),
        ("run softmax --evals 0", "--evals"),
        (f"run softmax --evals {10**400}", "--evals"),
        ("run softmax --seed 99999999999999999999", "--seed"),
        ("run softmax --tokens -5", "--tokens"),
        ("run softmax --usd nan", "--usd"),
        ("run softmax --until-sol 95", "speed of light"),
        ("run softmax --all", "leave out --all"),
        ("run softmax --strategy luck", "evolve, best-of-n"),
        ("run softmax --resume last", "there is no run of softmax yet"),
        ("run softmax --replay 12ab", "no run's id begins with `12ab`"),
        ("run softmax --device emulated --proposer offline --fresh", "leave out --fresh"),
        ("compare a b", "no run's id begins with `a`"),
        ("run", "OP"),
        ("run softmax --turbo", "--turbo"),
        ("evolute", "evolute"),
        ("tell nowhere.cu", "nowhere.cu"),
        ("tell no/such/kernels", "there is no file no/such/kernels"),
        ("tell notes.txt", ".jsonl"),
        ("tell nothing.jsonl", "no replies"),
        ("tell no_plan.cu", "does not name an op"),
        ("tell stranger.cu", "unheard_of"),
        ("evaluate sofmax", "softmax"),
        ("evaluate stranger.cu", "unheard_of"),
        ("evaluate --explain abc --archive nowhere.db", "there is no archive"),
        ("evaluate --explain abc --device tpu", "cuda, emulated"),
        ("confirm sofmax", "softmax"),
        ("confirm softmax --device tpu", "cuda, emulated"),
        ("ask softmax --device tpu", "tpu"),
        ("ask softmax --out no/such/folder/file", "cannot be written"),
        ("merge nowhere.db", "nowhere.db"),
        ("merge words.db", "not a database"),
        ("export --archive nowhere.db", "no archive"),
        ("export gelu --pytorch-too --out notes.txt/package", "notes.txt/package cannot be used: Not a directory"),
    ],
)
def test_a_usage_error_is_explained(arguments: str, message: str, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, *arguments.split())
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_an_export_without_gpu_times_names_the_op(capsys: Capture, tmp_path: Path) -> None:
    code, _, errors = evolve(capsys, "export", "gelu", "--archive", filled(tmp_path / "a.db"))
    assert code == 2
    assert "gelu" in errors
    assert not (tmp_path / "primitives").exists()


@pytest.mark.parametrize("given", ["--proposer llm", "--proposer offline --fresh", "--model gpt-5 --usd 1"])
def test_a_run_whose_proposer_cannot_be_used_creates_no_archive(given: str, capsys: Capture, tmp_path: Path) -> None:
    assert evolve(capsys, "run", "softmax", *given.split(), "--archive", tmp_path / "a.db")[0] == 2
    assert not (tmp_path / "a.db").exists()


def test_the_second_line_of_an_error_is_a_hint(capsys: Capture) -> None:
    lines = evolve(capsys, "top", "--archive", "nowhere.db")[2].splitlines()
    assert lines[0].startswith("error: ")
    assert "evolve run softmax" in lines[1]


def test_square_brackets_in_a_message_are_printed_as_they_are(capsys: Capture, tmp_path: Path) -> None:
    assert "[red]" in evolve(capsys, "top", "[red]", "--archive", filled(tmp_path / "a.db"))[2]


def test_an_unexpected_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    monkeypatch.setattr("evolve.cli.browse.standings", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evolve(capsys, "top", "softmax", "--archive", filled(tmp_path / "a.db"))


@pytest.mark.exhaustive
def test_a_closed_pipe_ends_a_command_quietly(tmp_path: Path) -> None:
    archive = filled(tmp_path / "a.db")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "evolve", *arguments], env=environment({"EVOLVE_ARCHIVE": str(archive)}),
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for arguments in (["top", "--json"], ["show", BEST.id], ["runs"], ["--help"])
    ]  # fmt: skip
    for process in processes:
        assert process.stdout
        process.stdout.close()
    for process in processes:
        assert process.stderr
        assert process.stderr.read() == ""
        assert process.wait(60) in (0, 141)  # 141 is the exit code of a program that SIGPIPE ends


LOOKING_UP = [
    ["--help"],
    ["ops"],
    ["doctor"],
    ["top"],
    ["runs"],
    ["show", BEST.id],
    ["diff", BEST.id, BEST.id[:5]],
    ["tree", "softmax"],
    ["ask", "softmax", "-n", "8", "--text"],
    ["ask", "softmax", "--operator", "improve", "--parent", BEST.id],
    ["ask", "gelu", "--operator", "port", "--parent", BEST.id],
    ["merge", "archive.db"],
    ["evaluate", "--explain", BEST.id],
    ["compare", "run", "other"],
    ["run", "softmax", "--minutes", "-3"],
    ["run", "softmax", "--proposer", "llm"],  # no model is given, which is an error before the op is loaded
]
PROGRAM = """
import json, sys
from evolve.cli.app import main

for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    if code not in (0, 2) or "torch" in sys.modules:
        sys.exit(f"{arguments}: exit code {code}, torch loaded: {'torch' in sys.modules}")
"""


@pytest.mark.exhaustive
def test_commands_that_only_read_do_not_load_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(LOOKING_UP)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment({"EVOLVE_ARCHIVE": str(filled(tmp_path / "archive.db")), "PYTHONPATH": str(ROOT)}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", ["run broken.py", "run no_op.py", "run nowhere.py", "top --archive words.db"])
def test_the_list_of_ops_is_not_offered_for_a_fault_in_a_file(arguments: str, capsys: Capture) -> None:
    errors = evolve(capsys, *arguments.split())[2]
    assert "lists the catalog" not in errors
    assert len(errors.splitlines()) == 2
