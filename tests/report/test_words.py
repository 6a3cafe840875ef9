"""Formatting of workloads, times and counts."""

import io
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from records import kernel
from rich.console import Console
from rich.text import Text

from evolve.report.words import (
    change,
    clock,
    command_lines,
    counted,
    figure,
    hanging,
    one_line,
    say,
    say_command,
    times,
    typed,
    workload_labels,
)


def test_a_workload_is_labelled_by_the_sizes_that_differ() -> None:
    keys = ["rows=64 cols=256 eps=1e-06 float32", "rows=2 cols=8192 eps=1e-06 bfloat16"]
    labels = workload_labels(keys)
    assert labels.heading == "rows×cols"
    assert [labels.of[key] for key in keys] == ["64×256 fp32", "2×8192 bf16"]
    assert labels.throughout == "eps=1e-06"


def test_a_single_workload_keeps_all_its_sizes() -> None:
    assert workload_labels(["n=4096 float16"]).of == {"n=4096 float16": "4096 fp16"}


def test_workloads_that_differ_only_in_dtype_are_labelled_by_dtype() -> None:
    labels = workload_labels(["n=8 float32", "n=8 int64"])
    assert list(labels.of.values()) == ["fp32", "int64"]
    assert labels.throughout == "n=8"


def test_workloads_of_different_dims_keep_their_names() -> None:
    labels = workload_labels(["n=8 float32", "m=8 float32"])
    assert list(labels.of.values()) == ["n=8 fp32", "m=8 fp32"]


def test_without_workloads_there_are_no_labels() -> None:
    assert workload_labels([]).of == {}


def test_times_are_shown_with_three_or_four_digits() -> None:
    assert [figure(value) for value in (1.234, 37.04, 1718.2, None)] == ["1.23", "37.0", "1718", "-"]
    assert [times(value) for value in (2.936, 250.4, 0.0123, 0.0012, None)] == [
        "2.94x", "250.40x", "0.01x", "<0.01x", "-",
    ]  # fmt: skip


def test_a_clock_shows_hours_only_from_one_hour_on() -> None:
    assert [clock(seconds) for seconds in (-1, 5, 65.4, 3700)] == ["0:00", "0:05", "1:05", "1:01:40"]


def test_a_count_of_one_is_singular() -> None:
    assert [counted(n, "reply", "replies") for n in (1, 2)] == ["1 reply", "2 replies"]


def test_a_long_log_becomes_one_line() -> None:
    assert one_line("a\n  b\n" + "c" * 300, 10) == "a b ccccc…"


def test_a_change_of_knobs_is_described_with_their_names() -> None:
    parent = kernel()
    assert change(parent.with_knobs({"N": 3}), parent) == "N 1→3"


def test_a_change_of_code_is_described_by_the_kernels_note() -> None:
    assert change(kernel(2), kernel(1)) == "number 2"


@pytest.mark.parametrize("width", [50, 80, 120])
def test_text_after_its_introduction_breaks_only_between_words(width: int) -> None:
    path = "/opt/" + "long/" * 20
    lines = [line.plain for line in hanging(Text("archive  "), f"{path} does not exist yet, so it is created", width)]
    assert " ".join(" ".join(lines).split()) == f"archive {path} does not exist yet, so it is created"
    assert all(len(line) <= width or path in line for line in lines)


COMMAND = "evolve run softmax --device emulated --archive /tmp/some/folder/archive.db --resume e049b5e7 --evals 12"


@pytest.mark.parametrize("width", [50, 80])
def test_a_command_that_is_too_long_for_a_line_is_continued_between_its_options(width: int) -> None:
    lines = command_lines(COMMAND, width)
    assert all(len(line) <= width for line in lines.splitlines())
    assert shlex.split(lines.replace("\\\n", "")) == COMMAND.split()
    assert "--resume e049b5e7" in lines
    assert "\n" not in command_lines(COMMAND, 120)


def printed(width: int, *, terminal: bool, say: Callable[[Console], None]) -> list[str]:
    into = io.StringIO()
    say(Console(file=into, width=width, force_terminal=terminal, color_system=None))
    return into.getvalue().splitlines()


def test_a_command_is_broken_for_terminals_only() -> None:
    lines = printed(80, terminal=True, say=lambda output: say_command(output, "To continue:", COMMAND))
    assert lines == ["To continue:", *command_lines(COMMAND, 80).splitlines()]
    lines = printed(80, terminal=False, say=lambda output: say_command(output, "To continue:", COMMAND))
    assert lines == [f"To continue: {COMMAND}"]


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_a_paragraph_breaks_between_words_and_keeps_commands_in_backticks_whole(width: int) -> None:
    text = "4 requests without a kernel: 4 x the deadline passed; `evolve top softmax --failures` lists them"
    lines = printed(width, terminal=True, say=lambda output: say(output, text))
    assert " ".join(lines) == text
    assert all(len(line) <= width for line in lines)
    assert any("`evolve top softmax --failures`" in line for line in lines)
    assert printed(width, terminal=False, say=lambda output: say(output, text)) == [text]


def test_a_command_to_type_has_short_paths_and_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("run", f"{tmp_path}/m.py:f@{tmp_path}/some inputs.py", "/elsewhere/a.db")
    assert typed(*words) == "run 'm.py:f@some inputs.py' /elsewhere/a.db"


def test_a_path_that_is_too_long_after_its_introduction_has_a_separate_line() -> None:
    path = "/opt/" + "long/" * 8
    lines = [line.plain for line in hanging(Text("CUDA headers       ok       "), f"{path} (13.5)", 60)]
    assert lines[:2] == ["CUDA headers       ok       ", f"    {path}"]
    assert all(len(line) <= 60 for line in lines)
