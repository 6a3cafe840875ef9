"""Damaged object files: whatever is cut off or changed, they are read or refused with an ObjectFileError."""

import pytest
from compiled_object import compiled_object
from hypothesis import given
from hypothesis import strategies as st

from evolve.devices import object_file
from evolve.devices.object_file import ObjectFileError

SOURCE = (
    "int zeroed[3];\nint begins = 5;\nextern int elsewhere;\nint function() { return zeroed[begins] + elsewhere; }\n"
)
changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6)
# The section headers are at the end of an object file; their offset is in the header at its start.
near_ends = st.lists(st.tuples(st.integers(-600, 0x40), st.sampled_from([0, 1, 2, 8, 127, 128, 255])), max_size=6)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled_object(SOURCE, tmp_path_factory.mktemp("object"))


@given(kept=st.floats(0, 1), changed=changes | near_ends)
def test_a_damaged_file_is_read_or_refused(image: bytes, kept: float, changed: list[tuple[int, int]]) -> None:
    damaged = bytearray(image)
    for at, value in changed:
        damaged[at % len(damaged)] = value
    for cut in (bytes(damaged), bytes(damaged[: round(kept * len(damaged))])):
        for read in (object_file.sections, object_file.symbols):
            try:
                read(cut)
            except ObjectFileError as error:
                assert "cut short or damaged" in str(error)  # noqa: PT017 - some damage is not noticed


@given(kept=st.integers(64, 1 << 16))
def test_a_file_without_its_end_is_refused(image: bytes, kept: int) -> None:
    """The section headers are at the end of the file."""
    with pytest.raises(ObjectFileError, match="cut short or damaged: "):
        object_file.sections(image[: 64 + kept % (len(image) - 64)])
