"""`evolve top`, `show`, `diff` and `tree` over an archive with a few kernels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import BEST, CHILD, COLS, REPLY, ROWS, WAITING, WRONG, evolve, filled
from records import GPU, checked, confirmed, failed, kernel, passed, proposal
from rich.text import Text
from shipping import ship

from archive import measured
from archive.sqlite import open_archive

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    path = filled(tmp_path / "archive.db")
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    return path


def parsed(capsys: Capture, *arguments: object) -> Any:
    code, output, _ = evolve(capsys, *arguments)
    assert code == 0
    return json.loads(output)


def test_top_has_a_row_per_op_and_device(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "top")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()[1:4]] == ["softmax", "unheard_of", "softmax"]
    assert "Some CPU (CPU times)" in output


def test_top_shows_champions_and_population_of_an_op(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "top", "softmax", "--device", "some gpu")
    assert code == 0
    for expected in (BEST.id[:8], CHILD.id[:8], "5.00x", "2×512 fp32", "population", "2 passed, 1 wrong"):
        assert expected in output
    assert "Some CPU" not in output


def test_top_names_the_order_of_the_population(archive: Path, capsys: Capture) -> None:
    assert "fittest first: by best known time over the kernel's time" in evolve(capsys, "top", "softmax")[1].replace(
        "\n", " "
    )


def test_top_marks_emulated_times(archive: Path, capsys: Capture) -> None:
    assert "speed can be measured only on a GPU" in evolve(capsys, "top", "softmax", "--device", "cpu")[1]


def test_top_prints_the_tables_as_json(archive: Path, capsys: Capture) -> None:
    gpu, cpu = parsed(capsys, "top", "softmax", "--json")
    assert [(c["workload"], c["kernel"], c["median_us"]) for c in gpu["champions"]] == [
        (ROWS, BEST.id, 20.0),
        (COLS, CHILD.id, 25.0),
    ]
    assert [survivor["kernel"] for survivor in gpu["population"]] == [BEST.id, CHILD.id]
    assert gpu["outcomes"] == {"passed": 2, "wrong": 1}
    assert gpu["pending"] == 1
    assert (gpu["emulated"], cpu["emulated"]) == (False, True)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as after installation on a machine without a GPU; the package ships two measured kernels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOLVE_ARCHIVE", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    verdict = measured.as_shipped(checked(confirmed(BEST.id, GPU, **{ROWS: 20.0, COLS: 30.0})))
    found = measured.MeasuredKernel("k0.cu", BEST, verdict, measured.Origin("improve", "some-model", created=9.0))
    ship(tmp_path / "shipped", monkeypatch, BEST, WRONG, found=[found])
    return tmp_path


@pytest.mark.usefixtures("fresh")
def test_shipped_times_are_shown_with_their_device_before_anything_is_archived(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "top", "softmax")
    assert code == 0
    assert "softmax on Some GPU" in output
    assert f"{BEST.id[:8]}*" in output
    assert "measured elsewhere" in output
    assert "1 passed" in output
    assert "pending" not in output


@pytest.mark.usefixtures("fresh")
def test_shipped_times_are_marked_in_json(capsys: Capture) -> None:
    (found,) = parsed(capsys, "top", "softmax", "--json")
    assert [champion["measured_elsewhere"] for champion in found["champions"]] == [True, True]


@pytest.mark.usefixtures("fresh")
def test_a_shipped_kernel_is_shown_with_its_proposer(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "show", BEST.id)
    assert code == 0
    assert "by some-model: improve elsewhere" in output
    assert "On Some GPU: passed, confirmed in a fresh process" in output
    assert "measured elsewhere" in output


@pytest.mark.usefixtures("fresh")
def test_shipped_kernels_can_be_compared_and_drawn_as_a_tree(capsys: Capture) -> None:
    assert "+note" in evolve(capsys, "diff", BEST.id, WRONG.id)[1]
    output = evolve(capsys, "tree", "softmax", "--all")[1]
    assert f"{BEST.id[:8]}  3.75x" in output
    assert f"{WRONG.id[:8]}  not evaluated" in output


@pytest.mark.usefixtures("fresh")
def test_reading_creates_no_archive(capsys: Capture, fresh: Path) -> None:
    evolve(capsys, "top")
    assert not (fresh / ".evolve").exists()


def test_shipped_kernels_that_were_never_measured_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    ship(tmp_path / "shipped", monkeypatch, BEST, WRONG)
    code, output, _ = evolve(capsys, "top", "softmax", "--archive", open_archive(tmp_path / "a.db").path)
    assert code == 0
    assert "softmax: 2 kernels, none evaluated yet" in output
    assert BEST.id[:8] in output
    (found,) = parsed(capsys, "top", "softmax", "--json", "--archive", tmp_path / "a.db")
    assert [one["kernel"] for one in found["kernels"]] == [BEST.id, WRONG.id]
    assert "softmax evaluated on no device yet" in evolve(capsys, "tree", "softmax", "--archive", tmp_path / "a.db")[1]


def test_top_of_an_archive_without_evaluations_suggests_a_command(tmp_path: Path, capsys: Capture) -> None:
    open_archive(tmp_path / "empty.db").close()
    code, output, _ = evolve(capsys, "top", "--archive", tmp_path / "empty.db")
    assert code == 0
    assert "evolve run softmax" in output


def test_top_of_an_unknown_op_points_to_the_catalog(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "top", "sofmax")
    assert code == 1
    assert "evolve ops" in errors


def test_show_prints_the_kernel_and_its_evaluations(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "show", BEST.id[:6])
    assert code == 0
    for expected in (
        *BEST.text.splitlines(),
        "by offline: seed",
        f"children: {CHILD.id[:8]}",
        "20.0",
        "On Some CPU: passed",
    ):
        assert expected in output


def test_show_prints_the_confirmation_of_a_champion(archive: Path, capsys: Capture) -> None:
    open_archive(archive).append(checked(confirmed(CHILD.id, GPU, 2.0, **{ROWS: 40.0})))
    output = evolve(capsys, "show", CHILD.id)[1]
    assert "On Some GPU: passed, confirmed in a fresh process" in output
    for expected in ("2.50x", "2.45–2.55", "held out", "racecheck", "won"):
        assert expected in output


def test_show_flags_a_speedup_above_ten_times_for_an_audit(archive: Path, capsys: Capture) -> None:
    assert "AUDIT" not in evolve(capsys, "show", CHILD.id)[1]
    open_archive(archive).append(checked(passed(CHILD.id, GPU, 2.0, **{ROWS: 4.0})))
    output = evolve(capsys, "show", CHILD.id)[1]
    assert "AUDIT: more than 10x" in output
    assert "not yet  a fresh process" in output


def test_show_names_the_workloads_that_a_kernel_does_not_accept(archive: Path, capsys: Capture) -> None:
    refusing = replace(passed(CHILD.id, GPU, 2.0, **{ROWS: 40.0}), skipped=(f"{COLS}: its `when` says no",))
    open_archive(archive).append(refusing)
    assert "not accepted (rows×cols): 2×512 fp32\n" in evolve(capsys, "show", CHILD.id)[1]


def test_the_overview_has_geometric_means_and_marks_champions_that_are_not_confirmed(
    archive: Path, capsys: Capture
) -> None:
    rows = [line.split() for line in evolve(capsys, "top")[1].splitlines()]
    (row,) = [row for row in rows if row[:1] == ["softmax"] and "GPU" in row]
    # geometric means: 10/20 and 10/25; 100/20 and 100/25
    assert row[-6:] == ["45%", "40%", "4.47x", "4.00x", "2/2?", "3"]
    store = open_archive(archive)
    store.append(confirmed(BEST.id, GPU, 2.0, **{ROWS: 20.0, COLS: 125.0}), failed(CHILD.id, created=2.0))
    store.append(failed(BEST.id, created=3.0), confirmed(BEST.id, GPU, 4.0, **{ROWS: 20.0, COLS: 125.0}))
    rows = [line.split() for line in evolve(capsys, "top")[1].splitlines()]
    (row,) = [row for row in rows if row[:1] == ["softmax"] and "GPU" in row]
    assert row[-6:-1] == ["20%", "8%", "2.00x", "0.80x", "1/2"]


def test_the_overview_begins_with_the_largest_possible_gain(archive: Path, capsys: Capture) -> None:
    found = parsed(capsys, "top", "--json")
    assert [(one["op"], one["emulated"]) for one in found] == [
        ("softmax", False), ("unheard_of", False), ("softmax", True),
    ]  # fmt: skip
    store = open_archive(archive)
    far = replace(passed(BEST.id, GPU, 5.0, n=1000.0), op="far")
    store.append(proposal(kernel(7, op="far")), replace(far, kernel_id=kernel(7, op="far").id))
    assert parsed(capsys, "top", "--json")[0]["op"] == "far"


@pytest.mark.usefixtures("fresh")
def test_the_overview_marks_times_from_other_machines(capsys: Capture) -> None:
    output = evolve(capsys, "top")[1]
    assert "Some GPU*" in output
    assert "measured elsewhere on such a GPU" in output


def test_top_as_json_marks_confirmed_champions(archive: Path, capsys: Capture) -> None:
    open_archive(archive).append(confirmed(BEST.id, GPU, 2.0, **{ROWS: 20.0}))
    gpu, _ = parsed(capsys, "top", "softmax", "--json")
    assert {c["workload"]: (c["confirmed"], bool(c["duel"])) for c in gpu["champions"]} == {
        ROWS: (True, True),
        COLS: (False, False),
    }


def test_show_says_which_of_several_kernels_in_a_reply_was_used(archive: Path, capsys: Capture) -> None:
    both = "".join(f"```cuda\n{kernel(number).text}```\n" for number in (7, 8))
    store = open_archive(archive)
    store.append(replace(proposal(kernel(8)), reply=both))
    store.close()
    output = evolve(capsys, "show", kernel(8).id)[1].replace("\n", " ")
    assert "the reply has 2 kernels; the last complete kernel was used" in output


def test_show_prints_the_log_of_a_failure(archive: Path, capsys: Capture) -> None:
    assert "it is wrong" in evolve(capsys, "show", WRONG.id)[1]


def test_show_says_that_a_kernel_was_not_evaluated(archive: Path, capsys: Capture) -> None:
    assert "Not evaluated yet" in evolve(capsys, "show", WAITING.id)[1]


def test_show_prints_a_reply_without_a_kernel_and_the_reason(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "show", REPLY.id[:8])
    assert code == 0
    assert "I cannot." in output
    assert "no kernel in the reply" in output


def test_show_as_json_has_the_text_and_the_evaluations(archive: Path, capsys: Capture) -> None:
    facts = parsed(capsys, "show", BEST.id, "--json")
    assert facts["text"] == BEST.text
    assert len(facts["evaluations"]) == 2
    assert facts["children"] == [CHILD.id, WRONG.id]


def test_an_unknown_id_exits_with_code_1(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "show", "zzzz")
    assert code == 1
    assert "zzzz" in errors


def test_an_ambiguous_id_lists_the_candidates(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "show", "")
    assert code == 2
    assert BEST.id[:8] in errors
    assert "number 1" in errors


def test_diff_shows_only_changed_lines(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "diff", BEST.id, CHILD.id)
    assert code == 0
    changed = [line for line in output.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-N = [1, 2, 3]", "+N = [2, 1, 3]"]


def test_diff_of_a_kernel_with_itself_reports_no_difference(archive: Path, capsys: Capture) -> None:
    assert "the same kernel" in evolve(capsys, "diff", BEST.id, BEST.id)[1]


def test_diff_with_a_reply_points_to_show(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "diff", BEST.id, REPLY.id)
    assert code == 2
    assert "evolve show" in errors


def test_tree_shows_children_under_their_parents(archive: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "tree", "softmax", "--device", "gpu")
    assert code == 0
    lines = output.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(BEST.id[:8]))
    assert lines[at + 1].startswith(f"├── {CHILD.id[:8]}  4.00x  knobs: N 1→2")
    assert lines[at + 2].startswith(f"└── {WRONG.id[:8]}  wrong  improve")


def test_tree_from_a_kernel_shows_only_its_descendants(archive: Path, capsys: Capture) -> None:
    output = evolve(capsys, "tree", "softmax", CHILD.id, "--device", "gpu")[1]
    assert CHILD.id[:8] in output
    assert WRONG.id[:8] not in output


def test_tree_from_a_kernel_of_another_op_is_rejected(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "tree", "unheard_of", CHILD.id)
    assert code == 2
    assert "is a kernel of softmax, not of unheard_of" in errors


def test_tree_as_json_lists_every_proposal(archive: Path, capsys: Capture) -> None:
    proposals = parsed(capsys, "tree", "softmax", "--json")
    assert [p["kernel"] for p in proposals if p["parents"]] == [CHILD.id, WRONG.id]


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_every_screen_can_be_drawn_at_any_width(
    archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    commands = (["top"], ["top", "softmax"], ["show", BEST.id], ["diff", BEST.id, CHILD.id], ["tree", "softmax"])
    assert [evolve(capsys, *command)[0] for command in commands] == [0] * len(commands)


def test_sentences_about_a_kernel_break_between_words_on_a_terminal(
    archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    lines = Text.from_ansi(evolve(capsys, "show", REPLY.id)[1]).plain.splitlines()
    begin = next(index for index, line in enumerate(lines) if REPLY.id in line)
    assert all(len(line.rstrip()) <= 40 for line in lines)
    assert " ".join(" ".join(lines[begin : begin + 2]).split()) == f"{REPLY.id} softmax: a reply without a kernel"
