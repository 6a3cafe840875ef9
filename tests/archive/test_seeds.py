"""Seeds: every archive includes the shipped kernels and verdicts beside its own records."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from records import GPU, checked, confirmed, kernel, passed, proposal
from shipped_measurements import ALONE
from shipping import ship

from archive import ArchiveError, library, measured, seeds
from archive.kernel import Kernel, Proposal
from archive.measured import MeasuredError, MeasuredKernel, Origin
from archive.records import Duel, Evaluation
from archive.sqlite import merge, open_archive

W, V = "rows=8 cols=16 float32", "rows=2 cols=512 float32"
BASE, OTHER = kernel(1), kernel(2)
TUNED = BASE.with_knobs({"N": 3})
VERDICT = replace(checked(confirmed(BASE.id, GPU, 2000.5, **{W: 20.04567, V: 30.0})), skipped=("n=1: too small",))
MADE = Origin("improve", "some-model", (OTHER.id,), 1000.0)


def measured_kernel(of: Kernel = BASE, verdict: Evaluation = VERDICT, origin: Origin | None = MADE) -> MeasuredKernel:
    return MeasuredKernel("k0.cu", of, measured.as_shipped(replace(verdict, kernel_id=of.id)), origin)


def shipped(op: str) -> set[str]:
    """Return the ids of the kernels that ship: the texts, and the other knob settings that were measured."""
    return {one.id for one in library.shipped(op)} | {one.kernel.id for one in seeds.measurements(op)}


def test_an_archive_holds_the_shipped_kernels_once_it_is_opened(tmp_path: Path) -> None:
    store = seeds.opened(tmp_path / "a.db")
    assert {kernel.id for kernel in store.find(Kernel)} == set().union(*map(shipped, library.op_names()))
    texts = {kernel.id for op in library.op_names() for kernel in library.shipped(op)}
    assert {one.kernel_id for one in store.find(Proposal) if one.proposer == "shipped"} >= texts


def test_opening_an_archive_again_adds_nothing(tmp_path: Path) -> None:
    seeds.opened(tmp_path / "a.db").close()
    assert seeds.add(open_archive(tmp_path / "a.db")) == 0


def test_a_reader_finds_the_shipped_kernels_in_an_archive_of_an_earlier_version(tmp_path: Path) -> None:
    store = open_archive(tmp_path / "a.db")
    store.append(proposal(OTHER))
    store.close()
    found = {kernel.id for kernel in seeds.opened(tmp_path / "a.db", read_only=True).find(Kernel, "softmax")}
    assert found == {OTHER.id, *shipped("softmax")}


def test_an_archive_that_cannot_be_written_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_archive(tmp_path / "a.db").close()

    def refused(*_: object) -> int:
        raise ArchiveError("attempt to write a readonly database")

    monkeypatch.setattr(seeds, "add", refused)
    assert seeds.opened(tmp_path / "a.db", read_only=True).find(Kernel) == []


def test_an_update_of_the_package_only_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(tmp_path / "old", monkeypatch, BASE)
    before = seeds.opened(tmp_path / "a.db").find(Proposal)
    ship(tmp_path / "new", monkeypatch, OTHER)
    after = seeds.opened(tmp_path / "a.db").find(Proposal)
    assert [one.id for one in after[: len(before)]] == [one.id for one in before]
    assert [one.kernel_id for one in after] == [BASE.id, OTHER.id]


def test_a_shipped_verdict_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = measured_kernel()
    ship(tmp_path / "s", monkeypatch, BASE, found=[given])
    assert seeds.measurements("softmax") == [given]
    (found,) = seeds.opened(tmp_path / "a.db").find(Evaluation)
    assert found == given.evaluation
    assert (found.shipped, found.measurements[0].median_us) == (True, 20.05)


def test_the_proposer_of_a_shipped_kernel_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(tmp_path / "s", monkeypatch, BASE, found=[measured_kernel()])
    made = seeds.opened(tmp_path / "a.db").find(Proposal)[0]
    assert (made.operator, made.proposer, made.parents, made.created) == ("improve", "some-model", (OTHER.id,), 1000.0)


def test_a_kernel_ships_with_other_knobs_without_a_text_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(tmp_path / "s", monkeypatch, BASE, found=[measured_kernel(TUNED)])
    assert [kernel.id for kernel in seeds.kernels("softmax")] == [BASE.id, TUNED.id]
    assert [one.kernel_id for one in seeds.opened(tmp_path / "a.db").find(Evaluation)] == [TUNED.id]


def test_a_verdict_of_the_archives_own_is_never_overruled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_archive(tmp_path / "a.db")
    own = passed(BASE.id, GPU, created=1.0, **{W: 50.0})
    store.append(proposal(BASE), own)
    store.close()
    ship(tmp_path / "s", monkeypatch, BASE, found=[measured_kernel(), measured_kernel(TUNED)])
    found = seeds.opened(tmp_path / "a.db").find(Evaluation)
    assert [one.id for one in found if one.kernel_id == BASE.id] == [own.id]
    assert [one.kernel_id for one in found if one.shipped] == [TUNED.id]


def test_shipped_verdicts_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(tmp_path / "s", monkeypatch, BASE, found=[measured_kernel()])
    mine = open_archive(tmp_path / "mine.db")
    merge(mine, seeds.opened(tmp_path / "theirs.db"))
    assert mine.find(Evaluation) == []


def test_a_text_has_one_line_per_workload() -> None:
    lines = measured.text("softmax", [measured_kernel()]).splitlines()
    for workload in (W, V):
        (line,) = [line for line in lines if f'"{workload}": {{' in line]
        assert '"median_us": ' in line
        assert '"duel": ' in line


def test_a_text_is_the_same_whatever_the_order_of_its_kernels() -> None:
    both = [measured_kernel(), measured_kernel(TUNED)]
    assert measured.text("softmax", both) == measured.text("softmax", both[::-1])


def test_rounding_does_not_turn_a_duel_into_a_win() -> None:
    near = Duel(W, "compile", 1.02, 1.00996, 1.03, noise=0.009999)
    assert not near.won
    given = replace(VERDICT, confirmed=VERDICT.confirmed and replace(VERDICT.confirmed, duels=(near,)))
    shipped = measured.as_shipped(given).confirmed
    assert shipped is not None
    assert not shipped.duels[0].won


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"format": 1', '"format": 9', "format 9"),
        ('"k0.cu"', '"gone.cu"', "gone.cu"),
        ('"median_us": 20.05', '"median_us": 90.05', "median_us must lie in its interval"),
        ('"measured": "1970', '"measured": "x', "does not match format"),
    ],
)
def test_a_broken_text_is_refused(old: str, new: str, why: str) -> None:
    written = measured.text("softmax", [measured_kernel()])
    assert old in written
    with pytest.raises(MeasuredError, match=why):
        measured.read("some/file.json", written.replace(old, new), {"k0.cu": BASE})


def test_knobs_that_give_another_kernel_are_refused() -> None:
    written = measured.text("softmax", [measured_kernel(TUNED)])
    with pytest.raises(MeasuredError, match="does not contain the kernel"):
        measured.read("f", written.replace('"knobs": {"N": 3}', '"knobs": {"N": 2}'), {"k0.cu": BASE})


def test_a_broken_text_of_the_package_is_an_error_of_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ship(tmp_path / "s", monkeypatch, BASE)
    (folder / "softmax" / "GPU.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"softmax/GPU\.json"):
        seeds.opened(tmp_path / "a.db")


def test_the_shipped_files_can_be_read() -> None:
    assert all(one.kernel.op == op for op in library.op_names() for one in seeds.measurements(op))


def ids(cache: Path) -> set[str]:
    with closing(ALONE(cache)) as store:
        return {kernel.id for kernel in store.find(Kernel)}


def test_an_archive_of_what_ships_is_copied_from_the_cache_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ids(tmp_path)
    assert first == set().union(*map(shipped, library.op_names()))
    monkeypatch.setattr(seeds, "add", lambda _store: pytest.fail("filled again"))
    assert ids(tmp_path) == first
    with closing(ALONE(tmp_path)) as store:
        assert (store.path, store.file) == (Path(":memory:"), None)
        assert store.append(proposal(OTHER)) > 0  # a command may write to its own copy
    assert ids(tmp_path) == first


def test_a_copy_of_other_kernels_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids(tmp_path / "cache")
    ship(tmp_path / "kernels", monkeypatch, BASE)
    assert ids(tmp_path / "cache") == {BASE.id}


@pytest.mark.parametrize("contents", [b"", b"no database", b"SQLite format 3\x00 and nothing else"])
def test_a_damaged_copy_is_written_again(contents: bytes, tmp_path: Path) -> None:
    every = ids(tmp_path)
    (copy,) = tmp_path.iterdir()
    copy.write_bytes(contents)
    assert ids(tmp_path) == every
    assert len(copy.read_bytes()) > 10_000


def test_without_a_cache_folder_the_archive_is_filled_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert ids(tmp_path / "file") == ids(tmp_path / "cache")
