"""Tell proposer: kernels and batches of replies from files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_endpoint import completion_body, in_fence
from small_op import KERNEL, KERNEL_TEXT, OP, SLOW_TEXT, passed, request

from archive.exchange import encode_custom_id
from archive.kernel import Proposal, parse
from evolve.errors import UserError
from evolve.proposers.tell import TellProposer, ops_in

SLOW = parse(SLOW_TEXT)
PARENT = "0123456789abcdef"
LONG_OP = "kernelbench_level2_conv_transpose3d_scale_batch_norm_global_average_pool"


def batch_line(text: str, custom_id: str = encode_custom_id("center_rows", "improve", (PARENT,), "k3f9")) -> str:
    response = {"status_code": 200, "body": completion_body(text, model="m-1")}
    return json.dumps({"custom_id": custom_id, "response": response, "error": None})


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def told(*files: Path, wanted: int = 100) -> list[Proposal]:
    return list(TellProposer(files).propose(request(wanted=wanted)))


def test_a_source_file_becomes_a_proposal_of_tell(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "a.cu", KERNEL_TEXT))
    assert (proposal.kernel, proposal.operator, proposal.proposer) == (KERNEL, "tell", "tell")


def test_a_malformed_source_file_fails_with_its_name_and_line(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "a.cu", KERNEL_TEXT.replace("specialize", "specialise")))
    assert proposal.failure.startswith("a.cu, line 5: unknown key `specialise`")


def test_a_batch_reply_becomes_a_proposal_of_its_model(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "out.jsonl", batch_line(in_fence(KERNEL_TEXT))))
    assert (proposal.kernel, proposal.operator, proposal.proposer) == (KERNEL, "improve", "m-1")


def test_a_batch_reply_has_the_parents_of_its_request(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "out.jsonl", batch_line(in_fence(KERNEL_TEXT))))
    assert proposal.parents == (PARENT,)


def test_a_batch_reply_has_its_tokens(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "out.jsonl", batch_line(in_fence(KERNEL_TEXT))))
    assert (proposal.cost.prompt_tokens, proposal.cost.completion_tokens) == (100, 10)


def test_a_batch_reply_without_a_kernel_keeps_its_text(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "out.jsonl", batch_line("I would rather not.")))
    assert (proposal.kernel, proposal.reply) == (None, "I would rather not.")


def test_a_malformed_line_becomes_a_failure_that_names_it(tmp_path: Path) -> None:
    path = written(tmp_path, "out.jsonl", f"{batch_line(in_fence(KERNEL_TEXT))}\n{{oops\n")
    assert told(path)[-1].failure.startswith("out.jsonl, line 2: this is not JSON")


def test_a_reply_with_a_foreign_custom_id_is_assigned_by_its_kernel(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "out.jsonl", batch_line(in_fence(KERNEL_TEXT), "request-1")))
    assert (proposal.kernel, proposal.operator, proposal.parents) == (KERNEL, "tell", ())


def test_a_reply_with_a_kernel_for_another_op_is_a_failure(tmp_path: Path) -> None:
    other = KERNEL_TEXT.replace('"center_rows"', '"softmax"', 1)
    (proposal,) = told(written(tmp_path, "out.jsonl", batch_line(in_fence(other))))
    assert "`softmax`, not `center_rows`" in proposal.failure


def test_kernels_and_replies_for_other_ops_are_skipped(tmp_path: Path) -> None:
    other = written(tmp_path, "a.cu", KERNEL_TEXT.replace('"center_rows"', '"softmax"', 1))
    batch = written(tmp_path, "out.jsonl", batch_line("no", encode_custom_id("softmax", "draft", (), "k3f9")))
    assert told(other, batch) == []


def test_a_kernel_in_the_archive_is_not_proposed_again(tmp_path: Path) -> None:
    path = written(tmp_path, "a.cu", KERNEL_TEXT)
    assert not list(TellProposer((path,)).propose(request(parents=(passed(KERNEL),))))


def test_kernels_come_before_failures(tmp_path: Path) -> None:
    path = written(tmp_path, "out.jsonl", f"{batch_line('no')}\n{batch_line(in_fence(KERNEL_TEXT))}\n")
    assert [proposal.kernel for proposal in told(path)] == [KERNEL, None]


def test_files_are_read_in_order(tmp_path: Path) -> None:
    files = written(tmp_path, "b.cu", KERNEL_TEXT), written(tmp_path, "a.cu", SLOW_TEXT)
    assert [proposal.kernel for proposal in told(*files)] == [KERNEL, SLOW]


def test_a_reply_for_a_long_op_is_found_by_the_label_in_its_custom_id(tmp_path: Path) -> None:
    text = KERNEL_TEXT.replace('"center_rows"', f'"{LONG_OP}"', 1)
    custom_id = encode_custom_id(LONG_OP, "improve", (PARENT,), "0123456")
    proposer = TellProposer((written(tmp_path, "out.jsonl", batch_line(in_fence(text), custom_id)),))
    (proposal,) = proposer.propose(replace(request(), op=replace(OP, name=LONG_OP)))
    assert proposal.kernel is not None


def test_the_ops_of_all_files_are_listed_once(tmp_path: Path) -> None:
    softmax = encode_custom_id("softmax", "draft", (), "k3f9")
    batch = written(tmp_path, "out.jsonl", "\n".join([batch_line("no", softmax), batch_line("no"), "{oops"]))
    assert set(ops_in((written(tmp_path, "a.cu", KERNEL_TEXT), batch))) == {"center_rows", "softmax"}


def test_a_long_op_is_listed_by_its_full_name(tmp_path: Path) -> None:
    text = KERNEL_TEXT.replace('"center_rows"', f'"{LONG_OP}"', 1)
    custom_id = encode_custom_id(LONG_OP, "improve", (PARENT,), "0123456")
    lines = [batch_line("no", custom_id), batch_line(in_fence(text), custom_id)]
    assert ops_in((written(tmp_path, "out.jsonl", "\n".join(lines)),)) == (LONG_OP,)


def test_a_malformed_line_is_reported_for_one_op_only(tmp_path: Path) -> None:
    softmax = encode_custom_id("softmax", "draft", (), "k3f9")
    path = written(tmp_path, "out.jsonl", "\n".join(["{oops", batch_line("no", softmax), batch_line("no")]))
    assert [proposal.reply for proposal in told(path)] == ["no"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", KERNEL_TEXT, "must be a .cu or a .jsonl file"),
        ("a.cu", "int main() {}", "does not name an op"),
        ("out.jsonl", "\n\n", "contains no replies"),
    ],
)
def test_a_file_without_kernels_is_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        told(written(tmp_path, name, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        told(tmp_path / "a.cu")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.cu"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        told(path)


def test_a_batch_reply_has_the_nonce_of_its_request(tmp_path: Path) -> None:
    (proposal,) = told(written(tmp_path, "out.jsonl", batch_line(in_fence(KERNEL_TEXT))))
    assert proposal.call == "k3f9"


def test_equal_replies_to_two_requests_are_two_proposals_however_often_they_are_read(tmp_path: Path) -> None:
    ids = [encode_custom_id("center_rows", "draft", (), nonce) for nonce in ("a1", "b2")]
    path = written(tmp_path, "out.jsonl", "\n".join(batch_line(in_fence(KERNEL_TEXT), one) for one in ids))
    once, again = told(path), told(path)
    assert len({proposal.id for proposal in once}) == 2
    assert [proposal.id for proposal in once] == [proposal.id for proposal in again]


def test_edits_in_a_batch_are_applied_to_the_parent(tmp_path: Path) -> None:
    edit = '<<<<<<< SEARCH\nnote = "one thread per row"\n=======\nnote = "wider"\n>>>>>>> REPLACE\n'
    custom_id = encode_custom_id("center_rows", "improve", (SLOW.id,), "k3f9")
    path = written(tmp_path, "out.jsonl", batch_line(edit, custom_id))
    (proposal,) = TellProposer((path,), kernels={SLOW.id: SLOW}).propose(request())
    assert proposal.kernel == parse(SLOW_TEXT.replace("one thread per row", "wider"))


def test_tokens_of_a_batch_reply_are_estimated_without_a_count(tmp_path: Path) -> None:
    body = completion_body("Use warps, many of them.", usage=None)
    line = json.dumps({"custom_id": "x", "response": {"status_code": 200, "body": body}, "error": None})
    (proposal,) = told(written(tmp_path, "out.jsonl", line))
    assert proposal.cost.completion_tokens == 8
