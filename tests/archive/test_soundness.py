import math
from dataclasses import replace
from typing import Any

import pytest
from records import GPU, checked, confirmed, failed_reply, kernel, measurement, passed, proposal

from archive.records import Check, Confirmed, Duel, Evaluation, Leg, Profile, Standard
from archive.runs import Budget, Cost, Run
from archive.soundness import DAY, UnsoundError, check, check_foreign

NOW = 1_000_000.0
SMALL: Any = "small"
WHOLE = checked(confirmed("k", created=NOW, w=3.5, v=7.25))
RUN = Run("r", "softmax", GPU.key, "offline", -7, NOW, budget=Budget(evals=10**30))


def whole(**changed: Any) -> Evaluation:
    return replace(WHOLE, **changed)


def on(**changed: Any) -> Evaluation:
    return replace(WHOLE, device=replace(GPU, **changed))


def timed(**changed: Any) -> Evaluation:
    return replace(WHOLE, measurements=(replace(measurement("w", 3.5), **changed),))


def dueled(**changed: Any) -> Evaluation:
    return replace(WHOLE, confirmed=Confirmed((), (replace(Duel("w", "eager", 2.0, 1.9, 2.1, 0.01), **changed),)))


@pytest.mark.parametrize(
    "record",
    [WHOLE, RUN, Leg("r", 1.0, 2.0), proposal(kernel()), failed_reply(), Standard("softmax", "w", GPU, 9.0)],
    ids=lambda record: type(record).__name__,
)
def test_our_own_records_are_sound_here_and_in_other_archives(record: object) -> None:
    check(record)
    check_foreign(record, NOW)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (timed(median_us="fast"), "measurements[0].median_us must be a finite number, at least 0, not 'fast'"),
        (timed(median_us=0), "measurements[0].median_us must be a time"),
        (timed(median_us=-1.0), "measurements[0].median_us must be"),
        (timed(median_us=math.nan), "measurements[0].median_us must be"),
        (timed(median_us=math.inf), "measurements[0].median_us must be"),
        (timed(median_us=1e300, high_us=1e300), "measurements[0].median_us must be a time"),
        (timed(median_us=9.0), "measurements[0].median_us must lie in its interval"),
        (timed(low_us=3.6), "measurements[0].median_us must lie in its interval"),
        (timed(eager_us=0.0), "measurements[0].eager_us must be a time"),
        (timed(compile_us="no"), "measurements[0].compile_us must be"),
        (timed(samples=1.5), "measurements[0].samples must be a whole number"),
        (timed(samples=True), "measurements[0].samples must be a whole number"),
        (timed(workload=b"w"), "measurements[0].workload must be text, not b'w'"),
        (dueled(speedup=1000.0), "confirmed.duels[0].speedup must lie in its interval"),
        (dueled(speedup=0.0, low=0.0), "confirmed.duels[0].speedup must be above 0"),
        (dueled(noise=math.nan), "confirmed.duels[0].noise must be"),
        (whole(outcome="splendid"), "outcome must be of type Outcome, not 'splendid'"),
        (whole(created="soon"), "created must be a time"),
        (whole(created=1e18), "created must be a time"),
        (whole(deterministic=2), "deterministic must be true or false"),
        (whole(skipped="all"), "skipped must be a list"),
        (whole(checks=(Check("w", "normal", "out", 1.0, SMALL, 1.0),)), "checks[0].theirs must be a number"),
        (on(tflops=(("float32",),)), "device.tflops[0] must be a list of 2"),
        (on(copy_gb_s=-1.0), "device.copy_gb_s must be"),
        (Standard("softmax", "w", GPU, 0.0), "eager_us must be a time"),
        (Profile("k", "softmax", GPU.key, "w", (("bytes", math.inf),)), "counters[0][1] must be"),
        (replace(failed_reply(), cost=Cost(usd=-1.0)), "cost.usd must be"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_with_its_field(record: object, said: str) -> None:
    with pytest.raises(UnsoundError) as caught:
        check(record)
    assert str(caught.value).startswith(said)


def test_the_error_of_an_output_may_be_infinite_or_unknown() -> None:
    check(whole(checks=(Check("w", "large", "out", math.inf, math.nan, math.inf),)))


def test_the_clocks_of_two_machines_may_differ_by_at_most_a_day() -> None:
    check_foreign(passed("k", created=NOW + DAY), NOW)
    with pytest.raises(UnsoundError, match="`created` is 3 days ahead"):
        check_foreign(passed("k", created=NOW + 3 * DAY), NOW)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (passed("k", replace(GPU, name="\x1b[31mH200")), "`name` has the control character U+001B"),
        (passed("k", replace(GPU, driver="580\n")), "`driver` has the control character U+000A"),
        (timed(workload="rows=8\u202e"), "`workload` has the character that changes the text direction U+202E"),
        (replace(failed_reply(), proposer="\x9bm"), "`proposer` has the control character U+009B"),
        (replace(failed_reply(), parents=("\ud800",)), "`parents` has the lone surrogate"),
    ],
)
def test_a_deceptive_name_is_refused(record: object, said: str) -> None:
    with pytest.raises(UnsoundError) as caught:
        check_foreign(record, NOW)
    assert said in str(caught.value)


def test_logs_and_replies_may_contain_any_character() -> None:
    check_foreign(replace(failed_reply(), reply="\x1b[31mred", failure="\x07"), NOW)
    check_foreign(whole(log="\x1b[31merror\x1b[m\n\tat"), NOW)
