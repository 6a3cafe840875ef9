"""Tables of champions, populations and measurements."""

from dataclasses import replace

import pytest
from drawn import drawn
from records import CPU, GPU, checked, confirmed, failed, failed_reply, kernel, passed, proposal
from standings import archive_of, standing

from archive.records import Outcome
from evolve.report import standing as standings
from evolve.report.kernel import reply_details
from evolve.report.standing import Standing, workloads_in_order
from evolve.report.standing_tables import (
    champions_table,
    counts_line,
    footnotes,
    headline,
    population_table,
    print_next_steps,
)
from evolve.report.tables import measurements_table
from evolve.report.words import console

ROWS, COLS = "rows=8 cols=16 float32", "rows=2 cols=512 float32"
FAST, SLOW, BAD = kernel(1), kernel(2), kernel(3)


def some_standing() -> Standing:
    evaluations = [
        passed(FAST.id, GPU, **{ROWS: 20.0, COLS: 30.0}),
        passed(SLOW.id, GPU, **{ROWS: 40.0, COLS: 25.0}),
        failed(BAD.id),
    ]
    proposals = [proposal(FAST, operator="seed"), proposal(SLOW, FAST.id), proposal(BAD, FAST.id), failed_reply()]
    return standing("softmax", GPU, [FAST, SLOW, BAD, kernel(4)], proposals, evaluations)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_the_champions_keep_their_numbers_at_any_width(width: int) -> None:
    lines = drawn(champions_table(some_standing(), width), width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "20.0" in text
    assert "25.0" in text


def test_a_row_shows_the_champion_beside_pytorch_and_the_speed_of_light() -> None:
    row = next(line for line in drawn(champions_table(some_standing(), 80)) if line.startswith("8×16"))
    assert row.split() == ["8×16", "fp32", f"{FAST.id[:8]}?", "20.0", "18.0–22.0", "100", "-", "5.00x", "50%"]


def test_a_champion_is_marked_until_it_is_confirmed() -> None:
    found = standing("softmax", GPU, [FAST], [], [confirmed(FAST.id, GPU, **{ROWS: 20.0})])
    assert "?" not in "\n".join([*drawn(champions_table(found, 80)), footnotes(found)])
    assert "?: not confirmed yet" in footnotes(some_standing())


def test_max_autotune_is_shown_in_a_wide_terminal() -> None:
    found = standing("softmax", GPU, [FAST], [], [checked(passed(FAST.id, GPU, **{ROWS: 20.0}))])
    narrow, wide = (drawn(champions_table(found, width), width) for width in (80, 140))
    assert "autotune" not in narrow[0]
    assert wide[0].split()[6:9] == ["eager", "compile", "autotune"]
    assert wide[1].split()[5:9] == ["100", "80.0", "75.0", "3.75x"]


def test_a_workload_without_a_champion_is_listed() -> None:
    lines = drawn(champions_table(some_standing(), 80, [ROWS, COLS, "rows=1 cols=1 float32"]))
    assert any("1×1 fp32" in line and "none yet" in line for line in lines)


def test_a_long_table_ends_with_the_number_of_hidden_rows() -> None:
    assert drawn(champions_table(some_standing(), 80, most=1))[-1] == "and 1 more"


def test_the_population_table_shows_operators_and_knobs() -> None:
    lines = drawn(population_table(some_standing(), 80))
    assert len(lines) == 3
    assert "seed" in lines[1]
    assert "N=1" in lines[1]


def test_the_population_table_counts_children_in_a_wide_terminal() -> None:
    header, first, *_ = drawn(population_table(some_standing(), 120), 120)
    assert "children" in header
    assert "number 1" in first


def test_every_outcome_is_counted() -> None:
    assert counts_line(some_standing()) == "2 passed, 1 wrong, 1 request without a kernel, 1 pending"


def test_many_kinds_of_failure_are_preceded_by_their_total() -> None:
    failing = [failed(kernel(number).id, outcome) for number, outcome in enumerate(list(Outcome)[1:4], start=10)]
    found = standing("softmax", GPU, [], [], [passed(FAST.id, GPU, **{ROWS: 20.0}), *failing])
    assert counts_line(found) == "1 passed, 3 failed (1 unsupported, 1 illegal, 1 malformed)"


def test_the_headline_of_an_emulated_device_has_a_note_about_its_times() -> None:
    emulated = standing("softmax", CPU, [FAST], [], [passed(FAST.id, CPU, **{ROWS: 20.0})])
    assert "speed can be measured only on a GPU" in headline(emulated).plain


def test_verdicts_of_other_devices_are_ignored() -> None:
    found = standing("softmax", GPU, [FAST], [], [passed(FAST.id, CPU, **{ROWS: 20.0})])
    assert not found.champions
    assert found.pending == 1


def test_a_kernel_that_a_gpu_has_judged_does_not_wait_for_the_emulated_device() -> None:
    judged, waiting = passed(FAST.id, GPU, **{ROWS: 20.0}), standing("softmax", CPU, [FAST], [], [])
    assert (standing("softmax", CPU, [FAST], [], [judged]).pending, waiting.pending) == (0, 1)


def test_the_measurements_of_a_failed_kernel_are_an_empty_table() -> None:
    assert len(drawn(measurements_table(failed(BAD.id, Outcome.CRASHED), 80))) <= 1


@pytest.mark.parametrize("width", [40, 50, 80, 120])
def test_the_champions_keep_their_workloads_and_ids_at_any_width(width: int) -> None:
    lines = drawn(champions_table(some_standing(), width), width)
    assert [line.split()[:3] for line in lines[1:]] == [
        ["8×16", "fp32", f"{FAST.id[:8]}?"],
        ["2×512", "fp32", f"{SLOW.id[:8]}?"],
    ]


def test_workloads_keep_the_order_of_the_op_if_the_first_kernel_accepts_only_the_last_ones() -> None:
    keys = [f"rows={rows} cols=16 float32" for rows in (64, 16, 8, 2)]
    late = replace(passed(FAST.id, GPU, **{keys[2]: 1.0, keys[3]: 1.0}), skipped=(f"{keys[0]}: no", f"{keys[1]}: no"))
    all_of_them = passed(SLOW.id, GPU, 2.0, **dict.fromkeys(keys, 9.0))
    found = standing("softmax", GPU, [FAST, SLOW], [], [late, all_of_them])
    assert [champion.workload for champion in found.champions] == keys


def test_skipped_workloads_have_the_same_place_as_for_other_kernels() -> None:
    keys = [f"rows={rows} cols=16 float32" for rows in (64, 16, 8)]
    late = replace(passed(FAST.id, GPU, **{keys[2]: 1.0}), skipped=(f"{keys[0]}: no", f"{keys[1]}: no"))
    early = replace(passed(SLOW.id, GPU, **{keys[0]: 1.0, keys[1]: 1.0}), skipped=(f"{keys[2]}: no",))
    assert workloads_in_order([late, early])[:2] == keys[:2]


def test_a_requested_answer_in_words_is_not_a_reply_without_a_kernel() -> None:
    designs = replace(failed_reply("1. one\n2. two"), operator="designs", failure="")
    found = standing("softmax", GPU, [FAST], [designs, failed_reply()], [passed(FAST.id, GPU, **{ROWS: 20.0})])
    assert counts_line(found) == "1 passed, 1 request without a kernel"
    printed = "\n".join(line for part in reply_details(designs) for line in drawn(part))
    assert "a reply in words, from which kernels are written" in printed
    assert "reason" not in printed


def of_a_fresh_run() -> Standing:
    """Return the standing of a run that proposed a slow kernel, a wrong one and one that is pending."""
    own = [replace(one, run="own") for one in (proposal(SLOW), proposal(BAD), proposal(kernel(4)))]
    evaluations = [passed(FAST.id, GPU, **{ROWS: 20.0}), passed(SLOW.id, GPU, **{ROWS: 40.0}), failed(BAD.id)]
    store = archive_of(proposal(FAST), failed_reply(), *own, *evaluations)
    return standings.standing(store, "softmax", GPU, only_run="own")


def test_the_standing_of_a_fresh_run_leaves_out_the_kernels_of_other_runs() -> None:
    found = of_a_fresh_run()
    assert {champion.kernel_id for champion in found.champions} == {SLOW.id}
    assert [one.kernel_id for one in found.population] == [SLOW.id]
    assert counts_line(found) == "1 passed, 1 wrong, 1 pending"
    assert (found.held, found.judged) == (3, 2)
    assert "only kernels that run own proposed" in headline(found).plain


def next_steps(found: Standing, capsys: pytest.CaptureFixture[str]) -> str:
    print_next_steps(console(), found, "softmax", "")
    return " ".join(capsys.readouterr().out.split())


def test_the_next_steps_of_a_fresh_run_show_its_own_champion(capsys: pytest.CaptureFixture[str]) -> None:
    printed = next_steps(of_a_fresh_run(), capsys)
    assert SLOW.id[:8] in printed
    assert FAST.id[:8] not in printed
    assert "those of other runs too" in printed


def test_the_next_steps_show_a_champion_of_the_table_even_if_another_kernel_is_fitter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held, fitter = confirmed(SLOW.id, GPU, **{ROWS: 20.0}), passed(FAST.id, GPU, **{ROWS: 19.9})
    found = standing("softmax", GPU, [FAST, SLOW], [], [held, fitter])
    assert [one.kernel_id for one in found.population] == [FAST.id, SLOW.id]
    assert f"evolve show {SLOW.id[:8]} the champion" in next_steps(found, capsys)


def test_the_next_steps_say_on_how_many_workloads_the_champion_leads(capsys: pytest.CaptureFixture[str]) -> None:
    printed = next_steps(some_standing(), capsys)
    assert "the best champion over all workloads; champion of 1 of 2" in printed
