"""The pager, small curves, and differences side by side on a terminal."""

import io
from pathlib import Path

import pytest
from drawn import drawn
from records import kernel
from rich.console import Console

from archive.kernel import Kernel
from evolve.report.best_so_far import sparkline
from evolve.report.kernel import beside
from evolve.report.output import paged, show


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGER", f"cat > {tmp_path / 'shown'}; true")
    monkeypatch.setattr("shutil.which", lambda _: "/bin/cat")
    monkeypatch.setattr("sys.stdin", Terminal())
    return tmp_path / "shown"


def printed(lines: int, *, terminal: bool = True) -> str:
    file = Terminal()
    console = Console(file=file, force_terminal=terminal, width=40, height=10, highlight=False)
    with paged(console):
        for number in range(lines):
            console.print(f"line {number}", style="bold")
    return file.getvalue()


def test_text_that_does_not_fit_the_screen_goes_to_the_pager(pager: Path) -> None:
    assert not printed(30)
    assert "line 29" in pager.read_text()
    assert "\x1b[1m" in pager.read_text()


def test_text_that_fits_the_screen_is_printed(pager: Path) -> None:
    assert "line 4" in printed(5)
    assert not pager.exists()


def test_piped_text_has_no_pager(pager: Path) -> None:
    assert "line 29" in printed(30, terminal=False)
    assert not pager.exists()


def test_an_empty_pager_means_none(pager: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "")
    assert "line 29" in printed(30)


def test_quitting_the_pager_early_is_not_an_error() -> None:
    show("line\n" * 100_000, "head -1 > /dev/null")


def test_a_curve_goes_from_low_to_high() -> None:
    assert sparkline([(0, 1.0), (5, 2.0), (10, 3.0)], 3) == "▁▅█"
    assert sparkline([(0, 1.0), (10, 3.0)], 4, unicode=False) == "___@"
    assert sparkline([(3, 2.0)], 4) == "▁▁▁▁"
    assert not sparkline([])


def test_changed_lines_are_side_by_side() -> None:
    (line,) = [one for one in drawn(beside(kernel(), kernel().with_knobs({"N": 2}), 110), 110) if "N = " in one]
    left, right = line[:55], line[55:]
    assert left.split()[1:] == ["N", "=", "[1,", "2,", "3]"]
    assert right.split()[1:] == ["N", "=", "[2,", "1,", "3]"]


def test_long_lines_are_folded_and_never_lost() -> None:
    long = Kernel(kernel().text + "// " + "x" * 300 + "\n")
    assert "".join(drawn(beside(kernel(), long, 110), 110)).count("x") >= 300
