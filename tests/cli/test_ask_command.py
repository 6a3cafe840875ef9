"""`evolve ask`: for people to read and for batches to send, any question or a certain one."""

import json
from pathlib import Path

import pytest
from command import TWICE
from commandline import BEST, CHILD, WRONG, evolve, filled
from records import CPU, GPU, kernel, passed, proposal

from archive.exchange import decode_custom_id
from archive.kernel import Kernel, parse
from archive.store import open_archive
from evolve.prompting import kernel_format
from evolve.prompting.operators import OPERATORS, PARENTS

Capture = pytest.CaptureFixture[str]
OTHER = parse(kernel(5).text.replace("[1, 2, 3]", "[4, 5, 6]"))
DONOR = kernel(6, op="gelu")
COLS = "rows=2 cols=512 float32"


@pytest.fixture(autouse=True)
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOLVE_ARCHIVE", "archive.db")
    path = filled(tmp_path / "archive.db")
    store = open_archive(path)
    store.append(proposal(OTHER), passed(OTHER.id, GPU, **{COLS: 28.0}), proposal(DONOR))
    store.close()
    return path


def test_a_question_can_be_read_word_for_word(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "ask", "softmax", "--text")
    assert code == 0
    assert f"======== system\n{kernel_format.ROLE}\n\n{kernel_format.rules()}" in output
    assert "======== user\n# The op: softmax" in output


def test_the_text_is_what_a_batch_would_send(capsys: Capture) -> None:
    lines = evolve(capsys, "ask", "softmax", "-n", "3", "--jsonl")[1].splitlines()
    text = evolve(capsys, "ask", "softmax", "-n", "3", "--text")[1]
    for line in lines:
        for message in json.loads(line)["body"]["messages"]:
            assert f"======== {message['role']}\n{message['content']}\n" in text


def test_a_question_to_be_read_comes_with_its_size_in_tokens(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "draft")[1]
    heading = output.splitlines()[0]
    size = int(heading.removeprefix("======== question 1 of 1: draft, about ").removesuffix(" tokens"))
    assert len(output) / 4 < size < len(output) / 2


def test_a_pipe_gets_a_batch(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax")[1]
    assert len([json.loads(line) for line in output.splitlines()]) == 8


def test_a_terminal_gets_one_question_to_be_read(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert evolve(capsys, "ask", "softmax")[1].startswith("======== question 1 of 1")


def test_a_file_gets_a_batch_also_from_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    evolve(capsys, "ask", "softmax", "--out", "questions.jsonl")
    assert len(Path("questions.jsonl").read_text().splitlines()) == 8


CERTAIN = [
    ("draft", []),
    ("explore", []),
    ("improve", [CHILD]),
    ("crossover", [BEST, OTHER]),
    ("repair", [WRONG]),
    ("specialise", [BEST]),
    ("port", [OTHER]),
]


@pytest.mark.parametrize(("operator", "parents"), CERTAIN, ids=[operator for operator, _ in CERTAIN])
def test_a_certain_question_can_be_asked(operator: str, parents: list[Kernel], capsys: Capture) -> None:
    named = [word for parent in parents for word in ("--parent", parent.id[:8])]
    code, output, _ = evolve(capsys, "ask", "softmax", "--jsonl", "--operator", operator, *named)
    (line,) = output.splitlines()
    asked = decode_custom_id(json.loads(line)["custom_id"])
    assert code == 0
    assert asked is not None
    assert (asked.op, asked.operator, asked.parents) == ("softmax", operator, tuple(parent.id for parent in parents))


def test_every_operator_can_be_asked_for() -> None:
    assert [operator for operator, _ in CERTAIN if operator not in OPERATORS] == []
    assert {operator: len(parents) for operator, parents in CERTAIN} == PARENTS


def test_the_kernel_that_was_named_is_shown_with_its_times(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "improve", "--parent", CHILD.id)[1]
    assert f"======== question 1 of 1: improve {CHILD.id[:8]}, about" in output
    assert CHILD.text in output
    assert "rows=2 cols=512 float32: 25 us" in output


def test_without_a_name_the_newest_failure_is_repaired(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "repair")[1]
    assert output.startswith(f"======== question 1 of 1: repair {WRONG.id[:8]}, ")


def test_without_names_two_designs_are_crossed_and_not_two_settings(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "crossover")[1]
    assert OTHER.id[:8] in output.splitlines()[0]


def test_questions_of_one_operator_are_told_apart(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--jsonl", "-n", "4", "--operator", "improve", "--parent", BEST.id)[1]
    assert len({json.loads(line)["custom_id"] for line in output.splitlines()}) == 4


def test_models_are_asked_in_turn(capsys: Capture) -> None:
    words = ("--operator", "improve", "--model", "one", "--model", "other", "-n", "3")
    output = evolve(capsys, "ask", "softmax", "--jsonl", *words)[1]
    assert [json.loads(line)["body"]["model"] for line in output.splitlines()] == ["one", "other", "one"]


def test_a_question_comes_in_the_form_that_its_model_is_good_at(capsys: Capture) -> None:
    Path("models.toml").write_text('[[model]]\nname = "editor"\nform = "edits"\n')
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "improve", "--model", "models.toml")[1]
    assert "<<<<<<< SEARCH" in output


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--operator", "merge"), "there is no operator `merge`", "choose one of: draft, improve"),
        (("--parent", BEST.id), "--parent needs to know what to do", "add --operator"),
        (("--operator", "draft", "--parent", BEST.id), "is applied to no kernel, not to 1", "leave --parent out"),
        (
            ("--operator", "crossover", "--parent", BEST.id),
            "is applied to 2 kernels, not to 1",
            "give --parent 2 times",
        ),
        (("--operator", "crossover", "--parent", BEST.id, "--parent", BEST.id[:9]), "the same kernel", "two different"),
        (("--operator", "repair", "--parent", BEST.id), "passed: there is nothing to repair", "--operator improve"),
        (("--operator", "improve", "--parent", WRONG.id), "failed: wrong", "--operator repair"),
        (("--operator", "improve", "--parent", DONOR.id), "is a kernel of gelu, not of softmax", "--operator port"),
        (("--operator", "port", "--parent", DONOR.id), "was never evaluated on Some GPU", "evolve evaluate gelu"),
        (("--operator", "improve", "--device", "tpu"), "no device like `tpu`", "it knows: cuda Some GPU"),
    ],
)
def test_what_cannot_be_asked_is_said_with_what_can(
    words: tuple[str, ...], message: str, hint: str, capsys: Capture
) -> None:
    code, output, errors = evolve(capsys, "ask", "softmax", *words)
    assert (code, output) == (2, "")
    assert message in errors
    assert hint in errors


def test_an_id_that_does_not_exist_is_told(capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "ask", "softmax", "--operator", "improve", "--parent", "ffff")
    assert (code, output) == (1, "")
    assert "nothing in the archive begins with `ffff`" in errors


@pytest.mark.parametrize("operator", ["improve", "explore", "crossover", "repair", "specialise", "port"])
def test_an_op_without_kernels_can_only_be_drafted(operator: str, capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "ask", TWICE, "--operator", operator)
    assert (code, output) == (2, "")
    assert "error: " in errors


def test_a_kernel_evaluated_elsewhere_is_not_taken_for_this_device(capsys: Capture) -> None:
    words = ("--operator", "improve", "--parent", CHILD.id, "--device", CPU.name)
    assert "was never evaluated on Some CPU" in evolve(capsys, "ask", "softmax", *words)[2]


def test_the_next_step_after_reading_is_a_kernel_in_a_file(capsys: Capture) -> None:
    said = evolve(capsys, "ask", "softmax", "--text", "--operator", "improve", "--parent", CHILD.id)[2]
    assert f"evolve tell FILE.cu --operator improve --parent {CHILD.id[:8]} --archive archive.db" in said


def test_the_next_step_names_the_file_of_an_own_op(capsys: Capture) -> None:
    _, _, said = evolve(capsys, "ask", TWICE, "--text")
    assert f"evolve tell FILE.cu --operator draft {TWICE} --archive archive.db" in said


def test_questions_are_about_a_gpu_where_the_archive_knows_no_device(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "-n", "1", "--archive", "empty.db")[1]
    assert "sm_90a" in output
    assert "Kernels run here on an emulator" not in output


def test_questions_are_about_the_device_that_the_archive_knows(capsys: Capture) -> None:
    assert "Some GPU" in evolve(capsys, "ask", "softmax", "-n", "1")[1]
    assert "Some CPU" in evolve(capsys, "ask", "softmax", "-n", "1", "--device", "cpu")[1]


def test_questions_can_be_written_to_a_file(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "ask", "softmax", "-n", "2", "--out", "questions.jsonl")
    assert (code, output) == (0, "")
    assert len(Path("questions.jsonl").read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_is_told(capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "ask", "softmax", "--out", "no/such/folder.jsonl")
    assert code == 2
    assert "choose another --out" in errors
