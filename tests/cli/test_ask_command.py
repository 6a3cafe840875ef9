"""`evolve ask` writes prompts as text or as a batch, for any operator or a given one."""

import json
import sqlite3
from pathlib import Path

import pytest
from command import TWICE
from commandline import BEST, CHILD, WRONG, evolve, filled
from records import CPU, GPU, kernel, passed, proposal

from archive import seeds
from archive.exchange import decode_custom_id
from archive.kernel import Kernel, parse
from archive.sqlite import open_archive
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


def test_the_text_of_a_prompt_is_complete(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "ask", "softmax", "--text")
    assert code == 0
    assert f"======== system\n{kernel_format.ROLE}\n\n{kernel_format.rules()}" in output
    assert "======== user\n# The op: softmax" in output


def test_the_text_has_the_messages_of_the_batch(capsys: Capture) -> None:
    lines = evolve(capsys, "ask", "softmax", "-n", "3", "--jsonl")[1].splitlines()
    text = evolve(capsys, "ask", "softmax", "-n", "3", "--text")[1]
    for line in lines:
        for message in json.loads(line)["body"]["messages"]:
            assert f"======== {message['role']}\n{message['content']}\n" in text


def test_the_text_of_a_prompt_has_its_size_in_tokens(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "draft")[1]
    heading = output.splitlines()[0]
    size = int(heading.removeprefix("======== prompt 1 of 1: draft, about ").removesuffix(" tokens"))
    assert len(output) / 4 < size < len(output) / 2


def test_a_pipe_gets_a_batch(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax")[1]
    assert len([json.loads(line) for line in output.splitlines()]) == 8


def test_a_terminal_gets_the_text_of_one_prompt(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert evolve(capsys, "ask", "softmax")[1].startswith("======== prompt 1 of 1")


def test_a_file_gets_a_batch(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    evolve(capsys, "ask", "softmax", "--out", "questions.jsonl")
    assert len(Path("questions.jsonl").read_text().splitlines()) == 8


CASES = [
    ("draft", []),
    ("explore", []),
    ("improve", [CHILD]),
    ("crossover", [BEST, OTHER]),
    ("repair", [WRONG]),
    ("specialise", [BEST]),
    ("port", [OTHER]),
]


@pytest.mark.parametrize(("operator", "parents"), CASES, ids=[operator for operator, _ in CASES])
def test_a_prompt_can_be_requested_for_an_operator_and_its_parents(
    operator: str, parents: list[Kernel], capsys: Capture
) -> None:
    named = [word for parent in parents for word in ("--parent", parent.id[:8])]
    code, output, _ = evolve(capsys, "ask", "softmax", "--jsonl", "--operator", operator, *named)
    (line,) = output.splitlines()
    asked = decode_custom_id(json.loads(line)["custom_id"])
    assert code == 0
    assert asked is not None
    assert (asked.op, asked.operator, asked.parents) == ("softmax", operator, tuple(parent.id for parent in parents))


def test_every_operator_is_tested() -> None:
    assert [operator for operator, _ in CASES if operator not in OPERATORS] == []
    assert {operator: len(parents) for operator, parents in CASES} == PARENTS


def test_the_prompt_has_the_named_kernel_and_its_times(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "improve", "--parent", CHILD.id)[1]
    assert f"======== prompt 1 of 1: improve {CHILD.id[:8]}, about" in output
    assert CHILD.text in output
    assert "rows=2 cols=512 float32: 25 us" in output


def test_repair_without_a_parent_uses_the_newest_failure(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "repair")[1]
    assert output.startswith(f"======== prompt 1 of 1: repair {WRONG.id[:8]}, ")


def test_crossover_without_parents_uses_two_designs(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "crossover")[1]
    assert OTHER.id[:8] in output.splitlines()[0]


def test_prompts_of_one_operator_have_different_ids(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "--jsonl", "-n", "4", "--operator", "improve", "--parent", BEST.id)[1]
    assert len({json.loads(line)["custom_id"] for line in output.splitlines()}) == 4


def test_prompts_go_to_the_models_in_turn(capsys: Capture) -> None:
    words = ("--operator", "improve", "--model", "one", "--model", "other", "-n", "3")
    output = evolve(capsys, "ask", "softmax", "--jsonl", *words)[1]
    assert [json.loads(line)["body"]["model"] for line in output.splitlines()] == ["one", "other", "one"]


def test_a_prompt_has_the_form_that_its_model_is_configured_for(capsys: Capture) -> None:
    Path("models.toml").write_text('[[model]]\nname = "editor"\nform = "edits"\n')
    output = evolve(capsys, "ask", "softmax", "--text", "--operator", "improve", "--model", "models.toml")[1]
    assert "<<<<<<< SEARCH" in output


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--operator", "merge"), "unknown operator `merge`", "choose one of: draft, improve"),
        (("--parent", BEST.id), "--parent needs an --operator", "add --operator"),
        (("--operator", "draft", "--parent", BEST.id), "draft takes no parent, got 1", "leave out --parent"),
        (
            ("--operator", "crossover", "--parent", BEST.id),
            "crossover takes 2 parents, got 1",
            "give --parent 2 times",
        ),
        (("--operator", "crossover", "--parent", BEST.id, "--parent", BEST.id[:9]), "the same kernel", "two different"),
        (("--operator", "repair", "--parent", BEST.id), "passed, so there is nothing to repair", "--operator improve"),
        (("--operator", "improve", "--parent", WRONG.id), "failed: wrong", "--operator repair"),
        (("--operator", "improve", "--parent", DONOR.id), "is a kernel of gelu, not of softmax", "--operator port"),
        (("--operator", "port", "--parent", DONOR.id), "was never evaluated on Some GPU", "evolve evaluate gelu"),
        (
            ("--operator", "improve", "--device", "tpu"),
            "no device in the archive has `tpu` in its name",
            "choose one of these devices: cuda Some GPU",
        ),
    ],
)
def test_an_impossible_request_is_explained(words: tuple[str, ...], message: str, hint: str, capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "ask", "softmax", *words)
    assert (code, output) == (2, "")
    assert message in errors
    assert hint in errors


def test_an_unknown_parent_exits_with_code_1(capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "ask", "softmax", "--operator", "improve", "--parent", "ffff")
    assert (code, output) == (1, "")
    assert "no id in the archive begins with `ffff`" in errors


@pytest.mark.parametrize("operator", ["improve", "explore", "crossover", "repair", "specialise", "port"])
def test_an_op_without_kernels_allows_only_draft(operator: str, capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "ask", TWICE, "--operator", operator)
    assert (code, output) == (2, "")
    assert "error: " in errors


def test_a_kernel_without_an_evaluation_on_the_device_is_rejected(capsys: Capture) -> None:
    words = ("--operator", "improve", "--parent", CHILD.id, "--device", CPU.name)
    assert "was never evaluated on Some CPU" in evolve(capsys, "ask", "softmax", *words)[2]


def test_the_next_step_after_text_is_evolve_tell(capsys: Capture) -> None:
    errors = evolve(capsys, "ask", "softmax", "--text", "--operator", "improve", "--parent", CHILD.id)[2]
    assert f"evolve tell FILE.cu --operator improve --parent {CHILD.id[:8]} --archive archive.db" in errors


def test_the_next_step_names_the_file_of_an_op_outside_the_catalog(capsys: Capture) -> None:
    _, _, errors = evolve(capsys, "ask", TWICE, "--text")
    assert f"evolve tell FILE.cu --operator draft {TWICE} --archive archive.db" in errors


def test_without_a_device_in_the_archive_prompts_are_about_a_gpu(capsys: Capture) -> None:
    output = evolve(capsys, "ask", "softmax", "-n", "1", "--archive", "empty.db")[1]
    assert "sm_90a" in output
    assert "Kernels run here on an emulator" not in output


def test_prompts_are_about_a_device_of_the_archive(capsys: Capture) -> None:
    assert "Some GPU" in evolve(capsys, "ask", "softmax", "-n", "1")[1]
    assert "Some CPU" in evolve(capsys, "ask", "softmax", "-n", "1", "--device", "cpu")[1]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("shipped_measurements")
def test_prompts_are_about_the_gpu_that_was_used_rather_than_the_one_of_shipped_verdicts(capsys: Capture) -> None:
    assert "Some GPU" in evolve(capsys, "ask", "softmax", "-n", "1")[1]
    assert "# The device: NVIDIA H" in evolve(capsys, "ask", "softmax", "-n", "1", "--archive", "empty.db")[1]


def test_prompts_can_be_written_to_a_file(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "ask", "softmax", "-n", "2", "--out", "questions.jsonl")
    assert (code, output) == (0, "")
    assert len(Path("questions.jsonl").read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_is_an_error(capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "ask", "softmax", "--out", "no/such/folder.jsonl")
    assert code == 2
    assert "choose another file for --out" in errors


def test_prompts_are_written_from_an_archive_that_must_not_be_changed(
    archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds.opened(archive).close()  # adds the shipped kernels and verdicts, once
    opened: list[bool] = []
    genuine = sqlite3.connect

    def connect(path: str | Path, **options: object) -> sqlite3.Connection:
        opened.append("mode=ro" in str(path))
        return genuine(path, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr("archive.sqlite.sqlite3.connect", connect)
    assert evolve(capsys, "ask", "softmax", "--text")[0] == 0
    assert opened == [True]


def test_prompts_need_no_archive_and_create_none(capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "ask", "softmax", "--text", "--archive", "folder/none.db")
    assert code == 0
    assert "# The op: softmax" in output
    assert "--archive folder/none.db" in errors
    assert not Path("folder").exists()
