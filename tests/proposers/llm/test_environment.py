"""Which server, key and model the environment means."""

import pytest
from scripted_endpoint import KEY, MODEL, ScriptedEndpoint, Step, answer, in_fence, models, raw, status
from small_op import KERNEL, KERNEL_TEXT, request

from evolve.errors import UserError
from evolve.proposers.llm.endpoint import first_model
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.proposer import from_environment

GOOD = answer(in_fence(KERNEL_TEXT))
NOBODY = "http://127.0.0.1:9/v1"  # the discard port, where nobody listens


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_the_requested_model_is_taken() -> None:
    assert from_environment(["mine"], {"OPENAI_BASE_URL": NOBODY}).name == "mine"


def test_without_a_server_of_ones_own_there_is_a_default_model() -> None:
    assert from_environment((), {"OPENAI_API_KEY": KEY}).name == "gpt-5"


def test_else_the_first_model_of_the_server_is_taken() -> None:
    with ScriptedEndpoint(models_step=models("first", "second")) as endpoint:
        assert from_environment((), endpoint.environment).name == "first"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (models(), "offers no models"),
        (raw("<html>"), "does not list its models"),
        (status(404), "does not list its models"),
        (status(401), "refused the key"),
    ],
    ids=["none", "html", "404", "401"],
)
def test_a_server_without_a_list_of_models_wants_one_named(step: Step, reason: str) -> None:
    with ScriptedEndpoint(models_step=step) as endpoint, pytest.raises(UserError, match=reason):
        first_model(endpoint.base_url, KEY, 10.0)


def test_the_environment_names_the_server_and_the_time_out() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        found = from_environment((), {**endpoint.environment, "EVOLVE_LLM_TIMEOUT": "12.5"})
        assert found.models == (Model(MODEL, endpoint.base_url, "OPENAI_API_KEY", timeout_seconds=12.5),)


def test_the_models_of_a_run_sign_together() -> None:
    words = ["one", "two@http://localhost:8000/v1"]
    assert from_environment(words, {"OPENAI_API_KEY": KEY}).name == "one, two"


def test_a_server_of_ones_own_needs_no_key() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        found = from_environment((), {"OPENAI_BASE_URL": endpoint.base_url})
        assert [proposal.kernel for proposal in found.propose(request(1))] == [KERNEL]


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "no language model is configured"),
        ({"OPENAI_BASE_URL": "localhost:8000"}, "must be an address"),
        ({"OPENAI_API_KEY": "sk-one\nsk-two"}, "characters that no key has"),
        ({"OPENAI_API_KEY": KEY, "EVOLVE_LLM_TIMEOUT": "soon"}, "must be a number of seconds"),
        ({"OPENAI_API_KEY": KEY, "EVOLVE_LLM_TIMEOUT": "nan"}, "must be a number of seconds"),
    ],
    ids=["empty", "address", "key", "words", "nan"],
)
def test_an_environment_that_cannot_be_meant_is_refused(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        from_environment(["m"], environment)


def test_a_server_that_is_down_is_the_users_to_put_right() -> None:
    with pytest.raises(UserError, match="no server answers at"):
        first_model(NOBODY, KEY, 10.0)
