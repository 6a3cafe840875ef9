"""Models read from arguments of `--model`, from files and from the environment."""

from pathlib import Path

import pytest
from each import each

from evolve.errors import UserError
from evolve.proposers.llm.models import (
    OPENAI_URL,
    Model,
    Prices,
    check_keys,
    check_priced,
    check_spends,
    read_models,
    without_secrets,
)

HOST = "http://localhost:8000/v1"
FULL = """
[[model]]
name = "big"
base_url = "https://gateway.example/v1"
key_env = "GATEWAY_KEY"
form = "edits"
usd_per_million = { prompt = 1.25, cached = 0.125, completion = 10 }
concurrency = 2
requests_per_minute = 30
tokens_per_minute = 90_000
reasoning_effort = "high"
max_tokens = 32_000
timeout_seconds = 90

[[model]]
name = "small"
temperature = 0.7
"""


def written(folder: Path, text: str) -> str:
    path = folder / "models.toml"
    path.write_text(text)
    return str(path)


def test_without_arguments_there_is_a_default_model() -> None:
    assert read_models((), {}) == (Model("gpt-5", key_env="OPENAI_API_KEY"),)


def test_a_name_without_an_address_uses_the_address_in_the_environment() -> None:
    (found,) = read_models(["qwen"], {"OPENAI_BASE_URL": HOST, "EVOLVE_LLM_TIMEOUT": "7"})
    assert (found.name, found.base_url, found.key_env, found.timeout_seconds) == ("qwen", HOST, "OPENAI_API_KEY", 7.0)


@each(
    {
        str(case): case
        for case in [
            (f"qwen@{HOST}", "qwen", HOST),
            ("acc/m@2025-01@https://h/v1", "acc/m@2025-01", "https://h/v1"),
            ("m@http://[::1]:8080/v1", "m", "http://[::1]:8080/v1"),
        ]
    }
)
def test_a_name_may_include_its_address(word: str, name: str, base_url: str) -> None:
    (found,) = read_models([word], {})
    assert (found.name, found.base_url) == (name, base_url)


def test_the_key_of_one_address_is_never_sent_to_another() -> None:
    assert [model.key_env for model in read_models(["gpt-5", f"qwen@{HOST}"], {})] == ["OPENAI_API_KEY", ""]


def test_a_file_sets_every_field_of_a_model(tmp_path: Path) -> None:
    big, small = read_models([written(tmp_path, FULL)], {})
    assert big == Model(
        "big",
        "https://gateway.example/v1",
        "GATEWAY_KEY",
        form="edits",
        usd_per_million=Prices(1.25, 10.0, 0.125),
        concurrency=2,
        requests_per_minute=30,
        tokens_per_minute=90_000,
        reasoning_effort="high",
        max_tokens=32_000,
        timeout_seconds=90,
    )
    assert small == Model("small", OPENAI_URL, "OPENAI_API_KEY", temperature=0.7)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ('[[model]]\nname = "m"\ntemprature = 1', "model 1: unknown key `temprature`", "`temperature`"),
        ('[[model]]\nname = "m"\n[[model]]\nxyz = 1', "model 2: unknown key `xyz`", "The keys are"),
        ('[[models]]\nname = "m"', "unknown key `models`", "`model`"),
        ('[model]\nname = "m"', "lists no models", "[[model]]"),
        ("", "lists no models", "[[model]]"),
        ("[[model]]\nconcurrency = 1", "has no name", "name ="),
        ("[[model]\n", "is not TOML", "quotes"),
        ('[[model]]\nname = "m"\nform = "poem"', "`form` must be one of fenced, whole, edits", ""),
        ('[[model]]\nname = "m"\nconcurrency = 0', "`concurrency` must be a whole number of at least 1", ""),
        ('[[model]]\nname = "m"\nmax_tokens = true', "`max_tokens` must be a whole number", ""),
        ('[[model]]\nname = "m"\ntemperature = 3', "`temperature` must be a number from 0 to 2", ""),
        ('[[model]]\nname = "m"\ntimeout_seconds = "1"', "`timeout_seconds` must be a number above 0", ""),
        ('[[model]]\nname = "m"\nbase_url = "localhost:1"', "model 1: base_url must be an address", "http://"),
        (f"a = {'[' * 5000}", "is not TOML", ""),
        (f'[[model]]\nname = "m"\nmax_tokens = {"9" * 5000}', "is not TOML", ""),
        ('[[model]]\nname = "m"\nusd_per_million = 3', "`usd_per_million` must be a table", ""),
        ('[[model]]\nname = "m"\nusd_per_million = { prompt = 1 }', "must have prompt and completion, got prompt", ""),
        (
            '[[model]]\nname = "m"\nusd_per_million = { prompt = 1, completion = -1 }',
            "`completion` must be in USD, got -1",
            "",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_a_hint(tmp_path: Path, text: str, reason: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        read_models([written(tmp_path, text)], {})
    assert reason in str(refused.value)
    assert hint in refused.value.hint


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_models([str(tmp_path / "none.toml")], {})


@each({url: url for url in ["http://", "http://:80/v1", "http://h:port/v1", "http://h:99999/v1", "http://[::1/v1"]})
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="must be an address"):
        read_models(["m"], {"OPENAI_BASE_URL": url})


def test_the_error_for_an_address_does_not_show_its_password() -> None:
    with pytest.raises(UserError) as refused:
        read_models(["m@http://me:hidden@h:port/v1"], {})
    assert "hidden" not in f"{refused.value} {refused.value.hint}"


@each({word: word for word in ["m@ftp://me:hidden@h/v1", "m@HTTP://me:hidden@h/v1", "http://h/v1?key=hidden"]})
def test_an_address_without_a_model_is_refused_and_its_password_hidden(word: str) -> None:
    with pytest.raises(UserError, match="must name a model") as refused:
        read_models([word], {})
    assert "hidden" not in f"{refused.value} {refused.value.hint}"
    assert "hidden" not in without_secrets(word)


def test_the_error_for_an_address_does_not_show_its_query() -> None:
    with pytest.raises(UserError, match="must be an address") as refused:
        read_models(["m"], {"OPENAI_BASE_URL": "htp://h/v1?key=hidden"})
    assert "hidden" not in str(refused.value)


def test_a_name_with_unprintable_characters_is_refused() -> None:
    with pytest.raises(UserError, match="characters that cannot be part of a name"):
        read_models(["m\udcff"], {})


def test_a_key_given_as_key_env_is_refused_and_not_shown(tmp_path: Path) -> None:
    models = read_models([written(tmp_path, '[[model]]\nname = "m"\nkey_env = "gsk_hidden"')], {})
    with pytest.raises(UserError, match="m needs a key") as refused:
        check_keys(models, {})
    assert "hidden" not in f"{refused.value} {refused.value.hint}"


def test_models_with_the_same_name_are_labelled_by_their_addresses() -> None:
    signatures = [model.signature for model in read_models([f"m@{HOST}", "m@http://me:pw@other/v1", "n"], {})]
    assert signatures == ["m@localhost:8000", "m@other", "n"]


def test_the_same_model_twice_needs_labels(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 models are called m"):
        read_models(["m@http://h/v1", "m@http://h/v1"], {})
    labelled = '[[model]]\nname = "m"\n[[model]]\nname = "m"\nlabel = "m warm"\ntemperature = 1'
    assert [model.signature for model in read_models([written(tmp_path, labelled)], {})] == ["m", "m warm"]


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({}, "GATEWAY_KEY is not set"), ({"GATEWAY_KEY": "one\ntwo"}, "characters that cannot be part of a key")],
)
def test_the_variable_of_a_key_must_be_set(tmp_path: Path, environment: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        check_keys(read_models([written(tmp_path, FULL)], {}), environment)


def test_a_limit_in_usd_needs_the_prices_of_all_models(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the price of small is not known"):
        check_priced([written(tmp_path, FULL)], "", {})


def test_the_error_for_a_missing_price_names_the_default_model() -> None:
    with pytest.raises(UserError, match="the price of the first of mine is not known"):
        check_priced([], "the first of mine", {"OPENAI_BASE_URL": HOST})


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UserError, match="--model must name a model"):
        read_models([" "], {})


@pytest.mark.parametrize(
    "text",
    [
        'name = "m"\nusd_per_million = { prompt = 0, completion = 0 }',
        'name = "m"\ntells_cost = true',
        'name = "m"\nbase_url = "https://openrouter.ai/api/v1"',
    ],
)
def test_a_model_whose_server_reports_costs_needs_no_prices(tmp_path: Path, text: str) -> None:
    check_priced([written(tmp_path, f"[[model]]\n{text}")], "", {})


def test_a_limit_only_in_usd_is_refused_for_free_models(tmp_path: Path) -> None:
    nothing = '[[model]]\nname = "m"\nusd_per_million = { prompt = 0, completion = 0 }\n'
    with pytest.raises(UserError, match="would never end"):
        check_spends([written(tmp_path, nothing)], {})
    check_spends([written(tmp_path, f'{nothing}[[model]]\nname = "n"\ntells_cost = true')], {})


@each(
    {
        str(case): case
        for case in [
            ("m@http://me:pw@h:1/v1?key=k", "m@http://h:1/v1"),
            (f"m@{HOST}", f"m@{HOST}"),
            ("models.toml", "models.toml"),
            ("m", "m"),
        ]
    }
)
def test_an_argument_is_shown_without_its_password(word: str, shown: str) -> None:
    assert without_secrets(word) == shown
