"""The report on a profile."""

import pytest

from archive.records import Profile
from evolve.report.profile import facts_of_profile, quantity


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (31_400.0, "ns", "31.4 µs"),
        (67_108_864.0, "B", "67.1 MB"),
        (0.0, "B", "0 B"),
        (92.46, "%", "92.5 %"),
        (4.0, "", "4"),
        (0.375, "", "0.38"),
        (2_097_152.0, "", "2.10 M"),
        (3e12, "B", "3.00 TB"),
    ],
)
def test_quantities_are_abbreviated(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_profile_without_counters_has_no_bottleneck() -> None:
    assert facts_of_profile(Profile("abc", "twice", "cuda GPU", "n=1 float32", ()), 16)["bottleneck"] is None
