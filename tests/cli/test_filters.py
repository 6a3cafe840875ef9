"""Filters, sorting, CSV and pictures of `evolve top`, `runs` and `diff` over an archive with every kind of record."""

import csv
import io
import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import shown_archive
from commandline import evolve
from records import GPU, kernel, passed, proposal
from rich.cells import cell_len
from shown_archive import RUNS

from archive.sqlite import open_archive
from evolve.cli.options import moment_of
from evolve.errors import UserError

Capture = pytest.CaptureFixture[str]
ROWS = "rows=8 cols=16 float32"
BEST, BROKEN = shown_archive.champion(), shown_archive.broken()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filtered") / "archive.db"
    shown_archive.fill(path).close()
    return path


@pytest.fixture(autouse=True)
def archive(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    return path


def rows(capsys: Capture, *arguments: str) -> list[dict[str, str]]:
    code, output, errors = evolve(capsys, *arguments, "--csv")
    assert code == 0, errors
    return list(csv.DictReader(io.StringIO(output)))


def test_kernels_are_listed_by_outcome(capsys: Capture) -> None:
    assert [row["kernel"] for row in rows(capsys, "top", "softmax", "--outcome", "compile")] == [BROKEN.id[:8]]
    assert {row["outcome"] for row in rows(capsys, "top", "--outcome", "wrong")} == {"wrong"}


def test_kernels_are_listed_by_proposer_and_run(capsys: Capture) -> None:
    second = rows(capsys, "top", "--proposer", "QWEN")
    assert {row["proposer"] for row in second} == {"qwen3-coder"}
    assert {row["run"] for row in second} == {RUNS["softmax"][1][:8]}
    of_run = rows(capsys, "top", "--run", RUNS["softmax"][1][:6])
    assert [row["kernel"] for row in of_run if row["outcome"] != "pending"] == [row["kernel"] for row in second]


def test_the_list_of_a_run_leaves_out_pending_kernels_of_other_runs(capsys: Capture) -> None:
    assert sum(row["outcome"] == "pending" for row in rows(capsys, "top", "--run", RUNS["softmax"][1])) == 0
    assert len(rows(capsys, "top", "softmax", "--outcome", "pending", "--device", "a100")) > 20


def test_kernels_are_listed_since_a_time(capsys: Capture) -> None:
    assert {row["run"] for row in rows(capsys, "top", "softmax", "--since", "2025-11-24")} == {RUNS["softmax"][1][:8]}
    assert evolve(capsys, "top", "--since", "1h")[0] == 1


def test_a_kernel_that_was_proposed_again_counts_from_its_first_proposal(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(tmp_path / "again.db"))
    old, new = kernel(1), kernel(2)
    offers = [
        replace(proposal(of, run=""), created=at, call=f"{at}") for of, at in ((old, 1e9), (old, 1.7e9), (new, 1.7e9))
    ]
    with closing(open_archive(tmp_path / "again.db")) as store:
        store.append(*offers, passed(old.id, GPU, 1e9, **{ROWS: 10.0}), passed(new.id, GPU, 1.7e9, **{ROWS: 20.0}))
    assert [row["kernel"] for row in rows(capsys, "top", "softmax", "--since", "2020-01-01")] == [new.id[:8]]


@pytest.mark.parametrize(("by", "column"), [("best", "best"), ("mean", "mean")])
def test_the_largest_ratio_comes_first(capsys: Capture, by: str, column: str) -> None:
    found = [row[column] for row in rows(capsys, "top", "softmax", "--device", "h200", "--sort", by)]
    ratios = [float(text.rstrip("x")) for text in found if text != "-"]
    assert ratios == sorted(ratios, reverse=True)
    assert found[: len(ratios)] == [text for text in found if text != "-"]


def test_a_dtype_selects_the_champions_of_that_dtype(capsys: Capture) -> None:
    found = rows(capsys, "top", "softmax", "--device", "h200", "--dtype", "fp32")
    assert [row["time µs"] for row in found] == ["37.8"]


def test_a_family_selects_its_ops(capsys: Capture) -> None:
    assert {row["op"] for row in rows(capsys, "top", "--family", "activation")} == {"gelu"}
    assert {row["op"] for row in rows(capsys, "runs", "--family", "softmax")} == {"softmax"}


def test_a_list_of_kernels_as_json_has_numbers(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "top", "--outcome", "passed", "--device", "h200", "--json")
    assert code == 0
    best = next(one for one in json.loads(output) if one["kernel"] == BEST.id)
    assert best["best"] == pytest.approx(80 / 31.5)


@pytest.mark.parametrize(
    "given",
    [
        ["--outcome", "fine"],
        ["--dtype", "f7"],
        ["--family", "nix"],
        ["--since", "soon"],
        ["--sort", "age"],
        ["--since", "d"],
    ],
)
def test_a_filter_without_a_match_names_possible_values(capsys: Capture, given: list[str]) -> None:
    code, _, errors = evolve(capsys, "top", *given)
    assert code == 2
    assert "choose one of" in errors or "such as 30m" in errors


def test_runs_are_filtered_and_sorted(capsys: Capture) -> None:
    assert [row["proposer"] for row in rows(capsys, "runs", "softmax", "--proposer", "qwen")] == ["qwen3-coder"]
    best = [float(row["best"].rstrip("x")) for row in rows(capsys, "runs", "--sort", "best")]
    assert best == sorted(best)


def test_runs_plot_the_best_so_far(capsys: Capture) -> None:
    curves = [row["best so far"] for row in rows(capsys, "runs", "softmax")]
    assert all(len(curve) == 16 and curve[-1] == "█" for curve in curves)


def test_top_plots_the_best_so_far(capsys: Capture) -> None:
    output = evolve(capsys, "top", "softmax", "--device", "h200")[1]
    assert "best so far ▁" in output
    assert "→ 2.32x in" in output


def test_numbers_in_csv_have_no_units_and_times_have_their_year(capsys: Capture) -> None:
    (first, *_) = rows(capsys, "runs")
    assert [float(first[name]) for name in ("evals", "tokens", "usd", "best")] == [24.0, 141_266.0, 0.326, 2.54]
    assert first["when"].startswith("2025-11-2")
    assert rows(capsys, "top", "--outcome", "passed", "--sort", "when")[0]["when"].startswith("2025-11-2")


def test_kernels_that_do_not_wait_for_a_verdict_are_not_pending(tmp_path: Path, capsys: Capture) -> None:
    store = open_archive(tmp_path / "other.db")
    waiting, judged = (shown_archive.noted(shown_archive.broken(), note) for note in ("waits", "judged on a GPU"))
    store.append(waiting, shown_archive.passed(judged, shown_archive.H200, 1.0, 1.0))
    store.append(judged, shown_archive.passed(shown_archive.champion(), shown_archive.CPU, 1.0, 2.0))
    store.append(shown_archive.champion())
    store.close()
    there = "--archive", str(tmp_path / "other.db")
    found = rows(capsys, "top", "softmax", "--outcome", "pending", "--device", "CPU", *there)
    assert [row["kernel"] for row in found] == [waiting.id[:8]]


def test_a_filter_that_only_pending_kernels_match_says_how_to_list_them(capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "top", "softmax", "--proposer", "shipped", "--device", "a100", "--since", "1h")
    assert code == 1
    assert "--outcome pending" in errors


def test_text_that_begins_like_a_formula_is_quoted_in_csv(tmp_path: Path, capsys: Capture) -> None:
    store = open_archive(tmp_path / "other.db")
    kernel = shown_archive.noted(shown_archive.broken(), "=HYPERLINK(1)")
    store.append(kernel, shown_archive.passed(kernel, shown_archive.H200, 1.0, 1.0))
    store.close()
    code, output, _ = evolve(capsys, "top", "softmax", "--csv", "--archive", tmp_path / "other.db")
    assert code == 0
    assert "'=HYPERLINK(1)" in output


@pytest.mark.parametrize("width", ["40", "80"])
@pytest.mark.parametrize(
    "note",
    [
        "每行一个线程束，十六字节加载，行留在寄存器中，三次遍历合为一次",
        "שורה אחת לכל warp, טעינות של 16 בתים, השורה נשארת ברגיסטרים",
    ],
)
def test_wide_and_right_to_left_notes_keep_the_table_in_its_width(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, note: str, width: str
) -> None:
    store = open_archive(tmp_path / "other.db")
    kernel = shown_archive.noted(shown_archive.broken(), note)
    store.append(kernel, shown_archive.passed(kernel, shown_archive.H200, 1.0, 1.0))
    store.close()
    monkeypatch.setenv("COLUMNS", width)
    for command in (["top", "softmax"], ["top", "--outcome", "passed"], ["tree", "softmax"]):
        output = evolve(capsys, *command, "--archive", tmp_path / "other.db")[1]
        assert max(map(cell_len, output.splitlines())) <= int(width), command


def test_times_are_ages_or_days() -> None:
    assert moment_of("2h") == pytest.approx(time.time() - 7_200, abs=5)
    assert moment_of("") == 0.0
    assert time.localtime(moment_of("2026-01-31"))[:3] == (2026, 1, 31)
    with pytest.raises(UserError):
        moment_of("h")
