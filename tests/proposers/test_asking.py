import json
from dataclasses import replace

import pytest
import torch
from small_op import BROKEN_TEXT, KERNEL, OP, SLOW_TEXT, failed, passed, request

from archive.kernel import parse
from evolve.proposers.asking import asks, reference_source, requests

MODEL = "m-1"
BROKEN = failed(parse(BROKEN_TEXT))


def test_the_same_seed_asks_the_same() -> None:
    situation = request(8, seed=3, parents=(passed(KERNEL),), failures=(BROKEN,))
    assert asks(situation, "") == asks(situation, "")


def test_a_batch_holds_the_messages_that_a_live_model_gets() -> None:
    situation = request(6, parents=(passed(KERNEL), passed(parse(SLOW_TEXT))), failures=(BROKEN,))
    lines = list(requests(situation, MODEL, "the reference"))
    assert len(lines) == 6
    for line, ask in zip(lines, asks(situation, "the reference"), strict=True):
        assert parse_messages(line) == [(message.role, message.content) for message in ask.messages]


def parse_messages(line: str) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in json.loads(line)["body"]["messages"]]


def test_the_ids_of_a_batch_are_different() -> None:
    lines = list(requests(request(50, parents=(passed(KERNEL),)), MODEL, ""))
    assert len({line.partition('", "method"')[0] for line in lines}) == 50


def test_without_parents_kernels_are_drafted() -> None:
    assert {ask.operator for ask in asks(request(5), "")} == {"draft"}


def test_all_parents_have_their_turn() -> None:
    parents = passed(KERNEL), passed(parse(SLOW_TEXT))
    improved = {ask.parents for ask in asks(request(20, parents=parents), "") if ask.operator == "improve"}
    assert improved == {(parent.kernel.id,) for parent in parents}


@pytest.mark.parametrize(("wanted", "failures", "repairs"), [(4, 5, 2), (5, 5, 2), (8, 1, 1), (2, 2, 1)])
def test_repairs_take_at_most_half_and_one_per_failure(wanted: int, failures: int, repairs: int) -> None:
    broken = tuple(failed(replace(BROKEN.kernel, source=f"{BROKEN.kernel.source}//{i}\n")) for i in range(failures))
    asked = asks(request(wanted, failures=broken), "")
    assert [ask.operator for ask in asked].count("repair") == repairs


def test_a_single_question_is_sometimes_a_repair() -> None:
    operators = {asks(request(1, seed=seed, failures=(BROKEN,)), "")[0].operator for seed in range(20)}
    assert operators == {"draft", "repair"}


def test_the_reference_source_is_its_whole_file() -> None:
    assert reference_source(OP).startswith('"""A small op with kernels')


def test_a_reference_without_python_source_has_none() -> None:
    assert reference_source(replace(OP, reference=torch.softmax)) == ""
