from dataclasses import replace

from drawn import drawn
from records import CPU, GPU, checked, confirmed, failed, passed
from rich.console import Group

from archive.records import Confirmed, DeviceInfo, Evaluation, Sanitized
from evolve.report.kernel import audit, confirmation_details, sanitizer_words

W, V = "rows=8 cols=16 float32", "rows=2 cols=512 float32"


def audited(evaluation: Evaluation) -> str:
    return " ".join(word for line in drawn(Group(*audit(evaluation))) for word in line.split())


def test_a_duel_says_whom_it_was_with_by_how_much_and_whether_it_was_won() -> None:
    lines = drawn(Group(*confirmation_details(confirmed("k", GPU, **{W: 50.0, V: 99.5}))))
    assert next(line for line in lines if line.startswith("8×16")).split()[2:] == [
        "compile", "2.00x", "1.96–2.04", "1.0%", "won",
    ]  # fmt: skip
    assert next(line for line in lines if line.startswith("2×512")).endswith("not won")


def with_said(*sanitized: Sanitized, device: DeviceInfo = GPU) -> Evaluation:
    shapes = ("rows=7 cols=9 float32",)
    return replace(passed("k", device, w=50.0), confirmed=Confirmed(shapes, (), sanitized))


def test_held_out_shapes_and_an_absent_sanitizer_are_told() -> None:
    text = "\n".join(drawn(Group(*confirmation_details(with_said()))))
    assert "rows=7 cols=9 float32" in text
    assert "compute-sanitizer was not found" in text


def test_an_emulator_has_no_sanitizer_to_miss() -> None:
    assert sanitizer_words(with_said(device=CPU))[0] == "compute-sanitizer is for GPUs alone"


def test_a_tool_that_could_not_finish_is_not_counted_as_clean() -> None:
    said, style = sanitizer_words(with_said(Sanitized("memcheck", 0), Sanitized("racecheck", None, "it took too long")))
    assert said == "memcheck found nothing; racecheck could not finish: it took too long"
    assert style


def test_up_to_ten_times_nothing_is_marked() -> None:
    assert audited(passed("k", w=10.0)) == ""


def test_above_ten_times_what_was_checked_is_listed_and_what_was_not() -> None:
    text = audited(checked(passed("k", GPU, **{W: 5.0})))
    assert "AUDIT: more than 10x" in text
    assert "15.00x at 8×16 fp32" in text
    assert "checked 3 outputs on 2 shapes" in text
    assert "not yet a fresh process" in text
    assert "evolve confirm softmax" in text


def test_what_a_confirmation_found_is_part_of_the_audit() -> None:
    text = audited(checked(confirmed("k", GPU, **{W: 5.0})))
    assert "not yet" not in text
    assert "checked in a fresh process, on 1 held-out shape" in text
    assert "checked sanitizer: memcheck, racecheck, initcheck and synccheck found nothing" in text


def test_a_sanitizer_that_was_absent_is_left_open_in_the_audit() -> None:
    evaluation = confirmed("k", GPU, **{W: 5.0})
    assert evaluation.confirmed
    without = replace(evaluation, confirmed=replace(evaluation.confirmed, sanitized=()))
    assert "not yet sanitizer" in audited(without)


def test_neither_a_failed_kernel_nor_an_unrecorded_check_passes_for_audited() -> None:
    assert audited(failed("k")) == ""
    assert "not yet how far off its outputs were" in audited(passed("k", CPU, **{W: 5.0}))
