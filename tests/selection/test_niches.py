from dataclasses import replace

import pytest

from archive.records import Traits
from evolve.selection.population import niche

PLAIN = Traits("code", 16, 4, 0, 40, 256, 1, tensor_cores=False, atomics=False, occupancy=1.0)


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, load_bytes=4),
        replace(PLAIN, registers=65),
        replace(PLAIN, shared_bytes=1),
        replace(PLAIN, launches=2),
        replace(PLAIN, tensor_cores=True),
        replace(PLAIN, atomics=True),
    ],
)
def test_kernels_that_work_differently_are_in_different_niches(other: Traits) -> None:
    assert niche(other) != niche(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, code="other"),
        replace(PLAIN, registers=64),
        replace(PLAIN, threads=128),
        replace(PLAIN, occupancy=0.5),
    ],
)
def test_kernels_that_are_only_tuned_differently_share_a_niche(other: Traits) -> None:
    assert niche(other) == niche(PLAIN)


def test_three_launches_and_ten_share_a_niche() -> None:
    assert niche(replace(PLAIN, launches=3)) == niche(replace(PLAIN, launches=10))


def test_a_niche_is_described_in_words() -> None:
    said = str(niche(replace(PLAIN, shared_bytes=9000, launches=7, atomics=True)))
    assert said == "16-byte loads, 3 or more launches, up to 16384 bytes of shared memory, up to 64 registers, atomics"
    assert str(niche(PLAIN)) == "16-byte loads, one launch, no shared memory, up to 64 registers"
