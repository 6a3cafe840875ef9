"""Questions: the prompts chosen for a request, live and as a batch."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from each import each
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


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert prompts(SITUATION, (ONE, OTHER), "") == prompts(SITUATION, (ONE, OTHER), "")


def test_another_seed_gives_other_prompts() -> None:
    first, second = (prompts(replace(SITUATION, seed=seed), (ONE,), "") for seed in (1, 2))
    assert [prompt.operator for prompt in first] != [prompt.operator for prompt in second]


def test_all_models_are_used() -> None:
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


def test_the_custom_id_of_a_batch_request_holds_operator_parents_and_nonce() -> None:
    ids = [decode_custom_id(json.loads(line)["custom_id"]) for line in batch_lines(prompts(SITUATION, (ONE,), ""))]
    live = [(prompt.operator, prompt.parents, prompt.nonce) for prompt in prompts(SITUATION, (ONE,), "")]
    assert [(one.operator, one.parents, one.nonce) for one in ids if one] == live


def test_the_custom_ids_of_a_batch_are_different() -> None:
    lines = batch_lines(prompts(request(50, parents=(passed(KERNEL),)), (ONE,), ""))
    assert len({json.loads(line)["custom_id"] for line in lines}) == 50


def test_other_runs_have_other_nonces() -> None:
    first, second = (prompts(replace(SITUATION, run=run), (ONE,), "")[0].nonce for run in ("a", "b"))
    assert first != second


@each({form: form for form in [FENCED, WHOLE, EDITS]})
def test_a_model_is_asked_for_its_own_form(form: str) -> None:
    prompt = prompt_for(SITUATION, replace(ONE, form=form), IMPROVE, (passed(KERNEL),), "", 0)
    assert prompt.messages[-1].content.endswith(ANSWERS[form])


@each({form: form for form in [FENCED, WHOLE, EDITS]})
def test_a_second_prompt_asks_for_the_same_form(form: str) -> None:
    prompt = prompt_for(SITUATION, replace(ONE, form=form), IMPROVE, (passed(KERNEL),), "", 0).once_more(
        "Warps.", "no kernel"
    )
    assert prompt.messages[-1].content.endswith(ANSWERS[form])


def test_a_second_prompt_has_another_nonce() -> None:
    prompt = prompts(SITUATION, (ONE,), "")[0]
    assert prompt.once_more("Warps.", "no kernel").nonce not in {one.nonce for one in prompts(SITUATION, (ONE,), "")}


def test_the_reference_source_of_a_file_with_one_op_is_the_whole_file() -> None:
    twice = Path(__file__).parents[2] / "samples" / "twice.py"
    assert reference_source(catalog.load(str(twice))) == twice.read_text()


PROGRAM = """\
import torch

EPS = 1e-3
STORY = "a long story of how the model is trained"


def scaled(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def twice_normed(x):
    return 2 * scaled(x)


def train():
    return STORY


examples = [lambda: (torch.randn(4, 8),)]
"""


def test_a_plain_function_is_shown_with_the_code_it_uses_and_without_the_rest_of_its_file(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    shown = reference_source(catalog.load(f"{program}:twice_normed@{program}"))
    assert "return 2 * scaled(x)" in shown
    assert "def scaled(x):" in shown
    assert "EPS = 0.001" in shown
    assert "train" not in shown


def test_a_reference_without_python_source_has_an_empty_source() -> None:
    assert reference_source(replace(OP, reference=torch.softmax)) == ""


def test_only_the_functions_of_one_op_are_shown_from_a_file_with_many() -> None:
    shown = reference_source(catalog.load("silu_backward"))
    assert "silu_backward" in shown
    assert "mish" not in shown
    assert len(shown) < 1000


@each(
    {name: name for name in ["swiglu_backward", "max_pool2d", "avg_pool3d_backward", "mse", "causal_attention", "lstm"]}
)
def test_the_functions_that_a_reference_calls_are_shown(name: str) -> None:
    shown = reference_source(catalog.load(name))
    assert "def " in shown
    assert "torch." in shown or "functional." in shown
    assert len(shown) < 6000
