"""The report on a confirmation, and the audit of very large speedups."""

from dataclasses import replace

from drawn import drawn
from records import CPU, GPU, checked, confirmed, failed, passed
from rich.console import Group

from archive.records import Confirmed, DeviceInfo, Evaluation, Sanitized
from evolve.report.kernel import audit, confirmation_details, sanitizer_words

W, V = "rows=8 cols=16 float32", "rows=2 cols=512 float32"


def audited(evaluation: Evaluation) -> str:
    return " ".join(word for line in drawn(Group(*audit(evaluation))) for word in line.split())


def test_a_duel_names_its_baseline_its_speedup_and_its_result() -> None:
    lines = drawn(Group(*confirmation_details(confirmed("k", GPU, **{W: 50.0, V: 99.5}))))
    assert next(line for line in lines if line.startswith("8×16")).split()[2:] == [
        "compile", "2.00x", "1.96–2.04", "1.0%", "won",
    ]  # fmt: skip
    assert next(line for line in lines if line.startswith("2×512")).endswith("not won")


def sanitized_evaluation(*sanitized: Sanitized, device: DeviceInfo = GPU) -> Evaluation:
    shapes = ("rows=7 cols=9 float32",)
    return replace(passed("k", device, w=50.0), confirmed=Confirmed(shapes, (), sanitized))


def test_held_out_shapes_and_a_missing_sanitizer_are_reported() -> None:
    text = "\n".join(drawn(Group(*confirmation_details(sanitized_evaluation()))))
    assert "rows=7 cols=9 float32" in text
    assert "compute-sanitizer was not found" in text


def test_a_missing_sanitizer_is_normal_on_the_emulated_device() -> None:
    assert sanitizer_words(sanitized_evaluation(device=CPU))[0] == "compute-sanitizer runs on GPUs only"


def test_a_tool_that_could_not_finish_is_not_counted_as_clean() -> None:
    words, style = sanitizer_words(
        sanitized_evaluation(Sanitized("memcheck", 0), Sanitized("racecheck", None, "it took too long"))
    )
    assert words == "memcheck found nothing; racecheck could not finish: it took too long"
    assert style


def test_a_speedup_of_ten_or_less_needs_no_audit() -> None:
    assert audited(passed("k", w=10.0)) == ""


def test_the_audit_of_a_speedup_above_ten_lists_made_and_missing_checks() -> None:
    text = audited(checked(passed("k", GPU, **{W: 5.0})))
    assert "AUDIT: more than 10x" in text
    assert "15.00x at 8×16 fp32" in text
    assert "checked 3 outputs on 2 shapes" in text
    assert "not yet a fresh process" in text
    assert "evolve confirm softmax" in text


def test_the_findings_of_a_confirmation_are_part_of_the_audit() -> None:
    text = audited(checked(confirmed("k", GPU, **{W: 5.0})))
    assert "not yet" not in text
    assert "checked in a fresh process, on 1 held-out shape" in text
    assert "checked sanitizer: memcheck, racecheck, initcheck and synccheck found nothing" in text


def test_the_audit_names_a_missing_sanitizer() -> None:
    evaluation = confirmed("k", GPU, **{W: 5.0})
    assert evaluation.confirmed
    without = replace(evaluation, confirmed=replace(evaluation.confirmed, sanitized=()))
    assert "not yet sanitizer" in audited(without)


def test_a_failed_kernel_has_no_audit_and_unrecorded_errors_are_mentioned() -> None:
    assert audited(failed("k")) == ""
    assert "not yet the errors of its outputs were not recorded" in audited(passed("k", GPU, **{W: 5.0}))


def test_times_that_are_not_gpu_times_have_no_duels_and_no_audit() -> None:
    emulated = confirmed("k", CPU, **{W: 5.0})
    assert audited(emulated) == ""
    details = [str(part) for part in confirmation_details(emulated)]
    assert details[0] == "no duel with PyTorch: that needs a GPU"
