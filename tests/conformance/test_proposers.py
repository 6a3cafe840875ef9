"""Requirements on every proposer. To test another one, add a function that opens it to PROPOSERS."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from random_knobs import RandomKnobs
from scripted_endpoint import KEY, MODEL, Rule, ScriptedEndpoint, answer, completion_body, in_fence, status
from small_op import BROKEN_TEXT, KERNEL_TEXT, OP, SLOW_TEXT, failed, passed, request

from archive.binding import parse_for
from archive.exchange import encode_custom_id
from archive.kernel import Proposal, parse
from archive.sqlite import open_archive
from evolve import wiring
from evolve.op_on_device import signature
from evolve.proposers.llm.endpoint import Endpoints
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.proposer import LlmProposer
from evolve.proposers.tell import TellProposer
from evolve.proposers.tuner.proposer import OfflineProposer
from evolve.request import Proposer, Request

Opened = AbstractContextManager[Proposer]
PARENT = passed(parse(KERNEL_TEXT))
FAILURE = failed(parse(BROKEN_TEXT))
OTHER_TEXT = SLOW_TEXT.replace("[64]", "[32]").replace("64)", "32)").replace("* 64", "* 32")


def offline(folder: Path) -> Opened:
    return nullcontext(OfflineProposer())


def random_knobs(folder: Path) -> Opened:
    """Open the proposer that follows CONTRIBUTING's recipe."""
    return nullcontext(RandomKnobs())


def tell(folder: Path) -> Opened:
    """Open a proposer that reads a kernel and a batch with a good, a useless, a malformed and a broken reply."""
    (folder / "slow.cu").write_text(SLOW_TEXT)
    replies = in_fence(OTHER_TEXT), "I would rather not.", in_fence(KERNEL_TEXT.replace("[knobs]", "[dials]"))
    lines = [
        json.dumps(
            {
                "custom_id": encode_custom_id(OP.name, "draft", (), str(number)),
                "response": {"status_code": 200, "body": completion_body(reply)},
                "error": None,
            }
        )
        for number, reply in enumerate(replies)
    ]
    (folder / "out.jsonl").write_text("\n".join([*lines, "{broken", ""]))
    return nullcontext(TellProposer((folder / "slow.cu", folder / "out.jsonl")))


@contextmanager
def llm(folder: Path) -> Iterator[Proposer]:
    """Open a proposer with a scripted model that repairs kernels and otherwise answers, refuses or fails in turn."""
    rules = Rule(("# Repair this kernel",), answer(in_fence(SLOW_TEXT))), Rule(("No kernel could",), answer("Never."))
    steps = [answer(in_fence(OTHER_TEXT)), answer("I would rather not."), status(500), answer(in_fence("/*---\n"))] * 5
    with ScriptedEndpoint(steps, rules=rules) as endpoint:
        yield LlmProposer((Model(MODEL, endpoint.base_url, "THE_KEY", concurrency=1),), Endpoints({"THE_KEY": KEY}, 0))


@contextmanager
def replay(folder: Path) -> Iterator[Proposer]:
    """Open a proposer that replays the answers of the same model from an archive."""
    store = open_archive(folder / "recorded.db")
    with llm(folder) as proposer:
        store.append(*proposer.propose(situation()))
    yield wiring.replaying(store, "run-1", tune=False)


PROPOSERS: dict[str, Callable[[Path], Opened]] = {
    "offline": offline,
    "tell": tell,
    "llm": llm,
    "replay": replay,
    "random": random_knobs,
}


@pytest.fixture(params=PROPOSERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Opened]:
    """Return a function that opens a fresh proposer at each call."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    make = PROPOSERS[request.param]
    return lambda: make(tmp_path)


def situation(wanted: int = 8) -> Request:
    return request(wanted, seed=7, parents=(PARENT,), failures=(FAILURE,))


def proposed(opened: Callable[[], Opened], wanted: int = 8) -> list[Proposal]:
    with opened() as proposer:
        return list(proposer.propose(situation(wanted)))


def test_some_proposals_contain_a_kernel(opened: Callable[[], Opened]) -> None:
    assert any(proposal.kernel for proposal in proposed(opened))


def test_a_proposer_has_a_name(opened: Callable[[], Opened]) -> None:
    with opened() as proposer:
        assert proposer.name


def test_proposals_name_the_op_and_the_run(opened: Callable[[], Opened]) -> None:
    assert {(proposal.op, proposal.run) for proposal in proposed(opened)} == {(OP.name, "run-1")}


def test_proposals_name_their_operator_and_proposer(opened: Callable[[], Opened]) -> None:
    assert all(proposal.operator and proposal.proposer for proposal in proposed(opened))


def test_no_more_kernels_are_proposed_than_are_wanted(opened: Callable[[], Opened]) -> None:
    for wanted in range(4):
        assert len([proposal for proposal in proposed(opened, wanted) if proposal.kernel]) <= wanted


def test_the_same_seed_gives_the_same_proposals(opened: Callable[[], Opened]) -> None:
    first, second = proposed(opened), proposed(opened)
    assert [proposal.id for proposal in first] == [proposal.id for proposal in second]


def test_every_kernel_parses_back_to_its_id(opened: Callable[[], Opened]) -> None:
    for proposal in proposed(opened):
        if proposal.kernel:
            assert parse(proposal.kernel.text).id == proposal.kernel_id


def test_every_kernel_fits_the_op(opened: Callable[[], Opened]) -> None:
    for proposal in proposed(opened):
        if proposal.kernel:
            assert parse_for(proposal.kernel.text, signature(OP)) == proposal.kernel


def test_a_proposal_contains_a_kernel_or_a_reason(opened: Callable[[], Opened]) -> None:
    assert all((proposal.kernel is None) == bool(proposal.failure) for proposal in proposed(opened))


def test_parents_are_kernels_from_the_request(opened: Callable[[], Opened]) -> None:
    shown = {PARENT.kernel.id, FAILURE.kernel.id}
    assert all(set(proposal.parents) <= shown for proposal in proposed(opened))


def test_a_caller_may_stop_after_the_first_proposal(opened: Callable[[], Opened]) -> None:
    with opened() as proposer:
        assert next(iter(proposer.propose(situation()))).op == OP.name
