"""Faults of requests: waits, temporary statuses and refused parameters."""

import random
from email.utils import formatdate

from each import each

from evolve.proposers.llm.endpoint import (
    MOST_SECONDS,
    accepted,
    back_off,
    refused_parameter,
    replacement,
    requested_wait,
    temporary,
)

NOW = 1_700_000_000.0


@each(
    {
        str(case): case
        for case in [
            ({}, None),
            ({"retry-after": "0"}, 0.0),
            ({"retry-after": "1.5"}, 1.5),
            ({"retry-after": "240"}, 240.0),
            ({"retry-after": formatdate(NOW + 90, usegmt=True)}, 90.0),
            ({"retry-after": formatdate(NOW - 90, usegmt=True)}, 0.0),
            ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
            ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
            ({"retry-after": "-1"}, None),
            ({"retry-after": "nan"}, None),
            ({"retry-after": "inf"}, None),
            ({"retry-after": "in a while"}, None),
            ({"retry-after": "Mon, 01 Jan 2024 00:00:00 +99999999999999999999"}, None),
        ]
    }
)
def test_retry_after_is_read_as_a_number_or_as_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_wait(headers, NOW) == seconds


def test_waits_grow_up_to_a_limit_and_differ_between_clients() -> None:
    waits = [[back_off(attempt, random.Random(seed)) for attempt in range(12)] for seed in range(20)]
    assert len({of_one[0] for of_one in waits}) == 20
    assert all(0 < wait <= MOST_SECONDS for of_one in waits for wait in of_one)
    assert min(of_one[4] for of_one in waits) > max(of_one[1] for of_one in waits)


@each({str(status): status for status in [408, 409, 429, 500, 502, 503, 529]})
def test_these_statuses_are_temporary(status: int) -> None:
    assert temporary(status)


@each({str(status): status for status in [400, 401, 403, 404, 413, 422]})
def test_these_statuses_are_lasting(status: int) -> None:
    assert not temporary(status)


@each({str(case): case for case in [
        ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
         {}, "max_tokens"),
        ("Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) is supported.",
         {}, "temperature"),
        ("no", {"code": "unsupported_parameter", "param": "reasoning_effort"}, "reasoning_effort"),
        ("no", {"error": {"code": "unsupported_value", "param": "temperature"}}, "temperature"),
        ("Extra inputs are not permitted: body.reasoning_effort", {}, "reasoning_effort"),
        ("Unrecognized request argument supplied: reasoning_effort", {}, "reasoning_effort"),
        ("max_tokens is too large: 99999, this model supports at most 4096", {}, ""),
        ("the context is too long", {}, ""),
        ("unsupported image", {}, ""),
    ]})  # fmt: skip
def test_the_refused_parameter_is_found_in_the_error(message: str, error: object, refused: str) -> None:
    sent = ("temperature", "max_tokens", "reasoning_effort")
    assert refused_parameter(400, message, error, sent) == refused


def test_a_parameter_that_was_not_sent_is_not_refused() -> None:
    assert refused_parameter(400, "Unsupported parameter: 'temperature'", {}, ("max_tokens",)) == ""


def test_only_a_bad_request_can_refuse_a_parameter() -> None:
    assert refused_parameter(500, "Unsupported parameter: 'temperature'", {}, ("temperature",)) == ""


@each(
    {
        str(case): case
        for case in [
            ([], {"temperature": 0.5, "max_tokens": 100}),
            (["temperature"], {"max_tokens": 100}),
            (["max_tokens"], {"temperature": 0.5, "max_completion_tokens": 100}),
            (["max_tokens", "max_completion_tokens"], {"temperature": 0.5}),
        ]
    }
)
def test_refused_parameters_are_renamed_once_or_dropped(refusals: list[str], sent: dict[str, object]) -> None:
    replacements = dict[str, str]()
    for refused in refusals:
        replacements[refused] = replacement(refused, replacements)
    assert accepted({"temperature": 0.5, "max_tokens": 100}, replacements) == sent
