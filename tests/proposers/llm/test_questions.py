import json
from dataclasses import replace

import pytest
import torch
from small_op import BROKEN_TEXT, KERNEL, OP, SLOW_TEXT, failed, passed, request

from archive.exchange import decode_custom_id
from archive.kernel import parse
from evolve.prompting.operators import ANSWERS, EDITS, FENCED, IMPROVE, WHOLE
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.questions import Prompt, batch_line, prompt_for, prompts, reference_source
from reference_ops import catalog

ONE, OTHER = Model("m-1"), Model("m-2", temperature=0.5, max_tokens=4000)
BROKEN = failed(parse(BROKEN_TEXT))
SITUATION = request(12, seed=3, parents=(passed(KERNEL), passed(parse(SLOW_TEXT))), failures=(BROKEN,))


def batch_lines(found: tuple[Prompt, ...]) -> list[str]:
    return [batch_line(OP.name, prompt) for prompt in found]


def test_the_same_seed_asks_the_same() -> None:
    assert prompts(SITUATION, (ONE, OTHER), "") == prompts(SITUATION, (ONE, OTHER), "")


def test_another_seed_asks_something_else() -> None:
    first, second = (prompts(replace(SITUATION, seed=seed), (ONE,), "") for seed in (1, 2))
    assert [prompt.operator for prompt in first] != [prompt.operator for prompt in second]


def test_several_models_have_their_turns() -> None:
    assert {prompt.model.name for prompt in prompts(replace(SITUATION, wanted=40), (ONE, OTHER), "")} == {"m-1", "m-2"}


def test_a_batch_holds_the_messages_and_parameters_that_a_live_model_gets() -> None:
    bodies = [json.loads(line)["body"] for line in batch_lines(prompts(SITUATION, (ONE, OTHER), "the reference"))]
    live = prompts(SITUATION, (ONE, OTHER), "the reference")
    assert bodies == [
        {
            "model": prompt.model.name,
            **prompt.model.parameters,
            "messages": [{"role": message.role, "content": message.content} for message in prompt.messages],
        }
        for prompt in live
    ]


def test_the_id_of_a_batch_request_says_what_a_live_proposal_would() -> None:
    ids = [decode_custom_id(json.loads(line)["custom_id"]) for line in batch_lines(prompts(SITUATION, (ONE,), ""))]
    live = [(prompt.operator, prompt.parents, prompt.nonce) for prompt in prompts(SITUATION, (ONE,), "")]
    assert [(one.operator, one.parents, one.nonce) for one in ids if one] == live


def test_the_ids_of_a_batch_are_different() -> None:
    lines = batch_lines(prompts(request(50, parents=(passed(KERNEL),)), (ONE,), ""))
    assert len({json.loads(line)["custom_id"] for line in lines}) == 50


def test_other_runs_have_other_nonces() -> None:
    first, second = (prompts(replace(SITUATION, run=run), (ONE,), "")[0].nonce for run in ("a", "b"))
    assert first != second


@pytest.mark.parametrize("form", [FENCED, WHOLE, EDITS])
def test_a_model_is_asked_for_its_own_form(form: str) -> None:
    prompt = prompt_for(SITUATION, replace(ONE, form=form), IMPROVE, (passed(KERNEL),), "", 0)
    assert prompt.messages[-1].content.endswith(ANSWERS[form])


@pytest.mark.parametrize("form", [FENCED, WHOLE, EDITS])
def test_asking_again_asks_for_the_same_form(form: str) -> None:
    prompt = prompt_for(SITUATION, replace(ONE, form=form), IMPROVE, (passed(KERNEL),), "", 0).once_more(
        "Warps.", "no kernel"
    )
    assert prompt.messages[-1].content.endswith(ANSWERS[form])


def test_asking_again_is_another_call() -> None:
    prompt = prompts(SITUATION, (ONE,), "")[0]
    assert prompt.once_more("Warps.", "no kernel").nonce not in {one.nonce for one in prompts(SITUATION, (ONE,), "")}


def test_the_reference_source_is_its_whole_file() -> None:
    assert reference_source(OP).startswith('"""A small op with kernels')


def test_a_reference_without_python_source_has_none() -> None:
    assert reference_source(replace(OP, reference=torch.softmax)) == ""


def test_of_a_file_of_many_ops_only_what_one_needs_is_shown() -> None:
    shown = reference_source(catalog.load("silu_backward"))
    assert "silu_backward" in shown
    assert "mish" not in shown
    assert len(shown) < 1000


@pytest.mark.parametrize(
    "name", ["swiglu_backward", "max_pool2d", "avg_pool3d_backward", "mse", "causal_attention", "lstm"]
)
def test_functions_that_a_reference_calls_are_shown_with_it(name: str) -> None:
    shown = reference_source(catalog.load(name))
    assert "def " in shown
    assert "torch." in shown or "functional." in shown
    assert len(shown) < 6000
