"""The server, key and model that the environment sets."""

import pytest
from each import each
from scripted_endpoint import KEY, MODEL, ScriptedEndpoint, Step, answer, in_fence, models, raw, status
from small_op import KERNEL, KERNEL_TEXT, request

from evolve.errors import UserError
from evolve.proposers.llm.endpoint import first_model
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.proposer import from_environment

GOOD = answer(in_fence(KERNEL_TEXT))
NO_SERVER = "http://127.0.0.1:9/v1"  # the discard port, which has no listener


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_the_requested_model_is_used() -> None:
    assert from_environment(["mine"], {"OPENAI_BASE_URL": NO_SERVER}).name == "mine"


def test_without_a_server_the_default_model_is_used() -> None:
    assert from_environment((), {"OPENAI_API_KEY": KEY}).name == "gpt-5"


def test_the_first_model_that_a_server_lists_is_used() -> None:
    with ScriptedEndpoint(models_step=models("first", "second")) as endpoint:
        assert from_environment((), endpoint.environment).name == "first"


@each(
    {
        "none": (models(), "offers no models"),
        "html": (raw("<html>"), "does not list its models"),
        "404": (status(404), "does not list its models"),
        "401": (status(401), "refused the key"),
    }
)
def test_a_server_that_lists_no_models_is_a_user_error(step: Step, reason: str) -> None:
    with ScriptedEndpoint(models_step=step) as endpoint, pytest.raises(UserError, match=reason):
        first_model(endpoint.base_url, KEY, 10.0)


def test_the_environment_sets_the_server_and_the_timeout() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        found = from_environment((), {**endpoint.environment, "EVOLVE_LLM_TIMEOUT": "12.5"})
        assert found.models == (Model(MODEL, endpoint.base_url, "OPENAI_API_KEY", timeout_seconds=12.5),)


def test_the_proposer_has_the_names_of_all_models() -> None:
    words = ["one", "two@http://localhost:8000/v1"]
    assert from_environment(words, {"OPENAI_API_KEY": KEY}).name == "one, two"


def test_another_server_needs_no_key() -> None:
    with ScriptedEndpoint(otherwise=GOOD) as endpoint:
        found = from_environment((), {"OPENAI_BASE_URL": endpoint.base_url})
        assert [proposal.kernel for proposal in found.propose(request(1))] == [KERNEL]


@each(
    {
        "empty": ({}, "no language model is configured"),
        "address": ({"OPENAI_BASE_URL": "localhost:8000"}, "must be an address"),
        "key": ({"OPENAI_API_KEY": "sk-one\nsk-two"}, "characters that cannot be part of a key"),
        "words": ({"OPENAI_API_KEY": KEY, "EVOLVE_LLM_TIMEOUT": "soon"}, "must be a number of seconds"),
        "nan": ({"OPENAI_API_KEY": KEY, "EVOLVE_LLM_TIMEOUT": "nan"}, "must be a number of seconds"),
    }
)
def test_a_malformed_environment_is_a_user_error(environment: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        from_environment(["m"], environment)


def test_a_server_that_is_down_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no server answers at"):
        first_model(NO_SERVER, KEY, 10.0)
