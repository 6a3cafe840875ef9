"""`evolve tell` and `evolve merge`: records that they add to the archive, and input that they reject."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from bad_kernels import twice_kernel
from command import TWICE
from commandline import evolve, filled, told, written
from gpu_records import archive_of, confirmed, everywhere, simple
from records import kernel

from archive.exchange import encode_custom_id
from archive.kernel import Kernel
from archive.records import Evaluation, Leg
from archive.sqlite import open_archive
from reference_ops import catalog

Capture = pytest.CaptureFixture[str]
GOOD = twice_kernel(note="one element a thread")
SAID = {"choices": [{"message": {"content": "no kernel"}}]}
TUNED = GOOD.with_knobs({"THREADS": 64})


@pytest.fixture(autouse=True)
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOLVE_ARCHIVE", "archive.db")
    return tmp_path / "archive.db"


def test_tell_archives_kernels_and_prints_the_next_command(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "tell", written(Path("good.cu"), GOOD), TWICE)
    assert code == 0
    assert f"added     {GOOD.id[:8]}  twice: one element a thread" in output
    assert f"evolve evaluate {TWICE}" in output
    assert [one.kernel_id for one in told(archive)] == [GOOD.id]


def test_telling_a_file_twice_changes_nothing(archive: Path, capsys: Capture) -> None:
    for _ in range(2):
        code, output, _ = evolve(capsys, "tell", written(Path("good.cu"), GOOD), TWICE)
    assert code == 0
    assert "known" in output
    assert len(told(archive)) == 1


def test_a_malformed_kernel_is_rejected_with_its_line(archive: Path, capsys: Capture) -> None:
    Path("bad.cu").write_text(GOOD.text.replace("[knobs]", "[nobs]"))
    code, output, _ = evolve(capsys, "tell", "bad.cu", TWICE)
    assert code == 1
    assert "rejected" in output
    assert "bad.cu, line" in output


def for_op(name: str, dim: str = "n") -> Path:
    text = GOOD.text.replace('"twice"', f'"{name}"').replace("ceil_div(n,", f"ceil_div({dim},")
    Path("a.cu").write_text(text.replace('["x", "out", "n"]', f'["out", "out", "{dim}"]'))
    return Path("a.cu")


def test_a_kernel_can_be_told_for_a_function_with_examples(capsys: Capture) -> None:
    program, examples = (Path(TWICE).parent / name for name in ("marked.py", "product_inputs.py"))
    code, output, _ = evolve(capsys, "tell", for_op("product", "a_0"), f"{program}:product", "--example", examples)
    assert code == 0
    assert f"next: evolve evaluate {program}:product@{examples}" in output


@pytest.mark.parametrize("task", ["kernelbench/KernelBench/level1/1_ScaledTanh.py", "robust_kbench/rms",
                                  "flashinfer_bench/definitions/rms/scaled_h64.json"])  # fmt: skip
def test_a_kernel_can_be_told_for_a_task_in_any_format(task: str, capsys: Capture) -> None:
    locator = Path(TWICE).parent / task
    op = catalog.load(str(locator))
    output = evolve(capsys, "tell", for_op(op.name), locator)[1]
    assert f"  {op.name}: " in output


def test_an_op_without_a_file_of_kernels_is_an_error(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "tell", TWICE)
    assert code == 2
    assert "no file with kernels was given" in errors
    assert not archive.exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "line 2: this is not JSON"),
        ("[1, 2]", "line 2: a reply is a JSON object"),
        (
            json.dumps({"custom_id": "mine", "response": {"status_code": 200, "body": SAID}}),
            "line 2: no op is named",
        ),
    ],
)
def test_a_line_without_an_op_is_rejected_with_its_number_and_the_reason(line: str, why: str, capsys: Capture) -> None:
    Path("junk.jsonl").write_text(f"\n{line}\n")
    code, _, errors = evolve(capsys, "tell", "junk.jsonl")
    assert code == 1
    assert f"junk.jsonl, {why}" in errors


def batch(*kernels: Kernel) -> Path:
    body = {"model": "some-model", "choices": [{"message": {"content": ""}}]}
    lines = []
    for one in kernels:
        answer = {**body, "choices": [{"message": {"content": f"```cuda\n{one.text}```"}}]}
        custom_id = encode_custom_id(one.op, "draft", (), "k3f9")
        lines.append(json.dumps({"custom_id": custom_id, "response": {"status_code": 200, "body": answer}}))
    Path("replies.jsonl").write_text("\n".join(lines))
    return Path("replies.jsonl")


def test_answers_for_an_unknown_op_are_named_and_the_others_are_archived(archive: Path, capsys: Capture) -> None:
    good = simple("softmax")
    replies = batch(kernel(1, op="sofmax"), good, kernel(2, op="unheard_of"), kernel(3, op="sofmax"))
    stranger = written(Path("stranger.cu"), kernel(4, op="unheard_of"))
    code, output, errors = evolve(capsys, "tell", replies, stranger)
    assert code == 0
    assert f"added     {good.id[:8]}  softmax" in output
    assert "replies.jsonl, lines 1, 4: the catalog has no op `sofmax`; did you mean softmax" in errors
    assert "replies.jsonl, line 3; stranger.cu: the catalog has no op `unheard_of`" in errors
    assert "add the file that defines the op" in errors
    assert [one.kernel_id for one in told(archive)] == [good.id]


def test_answers_for_an_unknown_op_can_be_told_again_with_its_file(archive: Path, capsys: Capture) -> None:
    replies = batch(simple("softmax"), GOOD)
    assert evolve(capsys, "tell", replies)[0] == 0
    code, output, errors = evolve(capsys, "tell", replies, TWICE)
    assert (code, errors) == (0, "")
    assert output.count("known") == 1
    assert output.count("added") == 1


def test_a_batch_only_for_unknown_ops_is_refused(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "tell", batch(kernel(1, op="unheard_of"), kernel(2, op="never_seen")))
    assert code == 2
    assert "line 1: the catalog has no op `unheard_of`" in errors
    assert "line 2: the catalog has no op `never_seen`" in errors


def test_evaluate_leaves_out_a_kernel_for_an_unknown_op(archive: Path, capsys: Capture) -> None:
    stranger, good = (written(Path(f"{one.op}.cu"), one) for one in (kernel(1, op="unheard_of"), GOOD))
    code, output, errors = evolve(capsys, "evaluate", stranger, good, TWICE, "--device", "emulated")
    assert code == 0
    assert "unheard_of.cu: the catalog has no op `unheard_of`" in errors
    assert "twice" in output


def test_tell_prints_proposals_as_json(capsys: Capture) -> None:
    _, output, _ = evolve(capsys, "tell", written(Path("good.cu"), GOOD), TWICE, "--json")
    (proposed,) = json.loads(output)
    assert (proposed["kernel"], proposed["op"], proposed["new"]) == (GOOD.id, "twice", True)


def test_prompts_are_written_as_a_batch_and_its_replies_are_archived(archive: Path, capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "ask", TWICE, "-n", "3", "--model", "some-model")
    requests = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert [request["body"]["model"] for request in requests] == ["some-model"] * 3
    assert "evolve tell" in errors
    answer = {"model": "some-model", "choices": [{"message": {"content": f"```cuda\n{GOOD.text}```"}}]}
    replies = [{"custom_id": r["custom_id"], "response": {"status_code": 200, "body": answer}} for r in requests[:1]]
    Path("replies.jsonl").write_text("".join(f"{json.dumps(reply)}\n" for reply in replies))
    assert evolve(capsys, "tell", "replies.jsonl", TWICE)[0] == 0
    (proposed,) = told(archive)
    assert (proposed.kernel_id, proposed.proposer, proposed.operator) == (GOOD.id, "some-model", "draft")


def test_merging_twice_adds_records_once(archive: Path, capsys: Capture, tmp_path: Path) -> None:
    source = filled(tmp_path / "source.db")
    _, output, _ = evolve(capsys, "merge", source, "--json")
    assert json.loads(output)[0]["new"] == {"kernels": 5, "proposals": 6, "evaluations": 5, "runs": 2, "standards": 0}
    assert "added nothing to" in evolve(capsys, "merge", source)[1]
    assert len(open_archive(archive).find(Evaluation)) == 5


def test_merging_a_missing_file_adds_nothing(archive: Path, capsys: Capture, tmp_path: Path) -> None:
    source = filled(tmp_path / "source.db")
    assert evolve(capsys, "merge", source, "nowhere.db")[0] == 2
    assert told(archive) == []


def test_a_damaged_archive_among_several_is_named_and_nothing_is_merged(
    archive: Path, capsys: Capture, tmp_path: Path
) -> None:
    good, bad = filled(tmp_path / "good.db"), filled(tmp_path / "bad.db")
    with closing(sqlite3.connect(bad)) as connection, connection:
        connection.execute("UPDATE measurements SET median_us = 'fast'")
    code, _, errors = evolve(capsys, "merge", good, bad)
    assert code == 2
    assert "bad.db is damaged: row" in errors
    assert "nothing was merged" in errors
    assert told(archive) == []


def test_a_merge_counts_evaluations_of_other_machines(archive: Path, capsys: Capture, tmp_path: Path) -> None:
    _, output, _ = evolve(capsys, "merge", filled(tmp_path / "source.db"))
    assert "5 evaluations were made elsewhere" in output
    assert "evolve confirm OP" in output
    assert "elsewhere" not in evolve(capsys, "merge", tmp_path / "source.db")[1]


def test_merged_results_are_exported_only_with_trust_merged(archive: Path, capsys: Capture, tmp_path: Path) -> None:
    softmax = simple("softmax")
    theirs = archive_of(tmp_path, softmax, confirmed(softmax, everywhere(catalog.load("softmax"), 50.0)))
    theirs.connection.execute("VACUUM INTO 'theirs.db'")
    archive.unlink()
    assert evolve(capsys, "merge", "theirs.db")[0] == 0
    code, _, errors = evolve(capsys, "export", "softmax", "--out", "package")
    assert (code, "come from merged archives" in errors, "--trust-merged" in errors) == (2, True, True)
    assert evolve(capsys, "export", "softmax", "--out", "package", "--trust-merged")[0] == 0
    assert Path("package/primitives/__init__.py").is_file()


def test_a_damaged_archive_is_an_error_without_traceback(archive: Path, capsys: Capture) -> None:
    filled(archive)
    with closing(sqlite3.connect(archive)) as connection, connection:
        connection.execute("UPDATE evaluations SET outcome = 'splendid'")
    code, _, errors = evolve(capsys, "top", "softmax")
    assert code == 2
    assert "is damaged: row" in errors
    assert "`evolve recover --archive archive.db`" in errors


def test_an_archive_whose_end_is_missing_has_a_command_that_recovers_it(tmp_path: Path, capsys: Capture) -> None:
    whole = tmp_path / "whole.db"
    open_archive(whole).close()
    cut = tmp_path / "cut.db"
    cut.write_bytes(whole.read_bytes()[:8192])
    code, _, errors = evolve(capsys, "top", "softmax", "--archive", cut)
    assert code == 2
    assert f"`evolve recover --archive {cut}`" in errors


def test_a_damaged_archive_is_recovered_into_a_new_one(archive: Path, capsys: Capture) -> None:
    filled(archive)
    with closing(open_archive(archive)) as store:
        store.append(Leg("run", 1.0, 2.0), Leg("run", 3.0, 4.0))
    with closing(sqlite3.connect(archive)) as connection, connection:
        connection.execute("UPDATE evaluations SET outcome = 'splendid' WHERE rowid = 1")
    code, output, _ = evolve(capsys, "recover")
    assert code == 0
    assert "copied 2 runs, 2 parts of runs, 5 kernels, 6 proposals and 4 evaluations" in output
    assert "lost: 1 record with damaged values" in output
    into = Path("archive.recovered.db")
    assert f"next: evolve top --archive {into}" in output
    assert evolve(capsys, "top", "--archive", into)[0] == 0
    code, _, errors = evolve(capsys, "recover")
    assert (code, "exists already" in errors, "--out" in errors) == (2, True, True)


def test_nothing_is_recovered_from_a_file_that_is_not_an_archive(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "words.db").write_text("words" * 999)
    code, _, errors = evolve(capsys, "recover", "--archive", tmp_path / "words.db")
    assert (code, "nothing can be read" in errors) == (2, True)


def test_a_kernel_with_control_characters_is_rejected(capsys: Capture) -> None:
    Path("bad.cu").write_text(GOOD.text.replace("one element", "\\u001b[2J one element"))
    code, output, _ = evolve(capsys, "tell", "bad.cu", TWICE)
    assert code == 1
    assert "the plan has an escape for the control character U+001B" in output


def test_the_catalog_is_listed_with_its_shipped_kernels(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "ops", "--json")
    softmax = next(op for op in json.loads(output) if op["op"] == "softmax")
    assert code == 0
    assert softmax["family"] == "softmax"
    assert softmax["dtypes"] == ["bfloat16", "float32", "float16"]
    assert softmax["kernels"]
    assert "softmax" in evolve(capsys, "ops")[1]


def test_kernels_of_several_ops_can_be_told_at_once(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "tell", written(Path("a.cu"), kernel(1)), written(Path("b.cu"), GOOD), TWICE)
    assert code == 0
    assert "evolve evaluate softmax" in output
    assert len(told(archive)) == 2


def test_a_kernel_can_be_told_with_its_operator_and_parent(archive: Path, capsys: Capture, tmp_path: Path) -> None:
    first, second = written(tmp_path / "first.cu", GOOD), written(tmp_path / "second.cu", TUNED)
    assert evolve(capsys, "tell", str(first), TWICE)[0] == 0
    code, _, _ = evolve(capsys, "tell", str(second), TWICE, "--operator", "improve", "--parent", GOOD.id[:8])
    assert code == 0
    (child,) = [p for p in told(archive) if p.kernel_id == TUNED.id]
    assert (child.operator, child.parents, child.proposer) == ("improve", (GOOD.id,), "tell")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--parent", GOOD.id), "--operator improve"),
        (("--operator", "guess"), "unknown operator `guess`"),
        (("--operator", "improve", "--parent", "ffff"), "ffff"),
    ],
)
def test_a_wrong_operator_or_parent_is_explained(
    archive: Path, capsys: Capture, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    proposed = written(tmp_path / "first.cu", GOOD)
    code, _, errors = evolve(capsys, "tell", str(proposed), TWICE, *words)
    assert code != 0
    assert message in errors
    assert not archive.exists() or told(archive) == []
