"""The escaping of control characters in printed text."""

import fcntl
import json
import os
import struct
import termios
from dataclasses import replace

import pytest
from records import GPU, failed, failed_reply, kernel
from rich.text import Text

from archive.kernel import Kernel
from evolve.report.basis import PYTORCH
from evolve.report.kernel import difference, kernel_details, reply_details
from evolve.report.tables import plain_table
from evolve.report.words import complain, console, print_json, print_text

Capture = pytest.CaptureFixture[str]
HOSTILE = "\x1b[2J\x1b]52;c;ZWNobw==\x07 \x9b31m \u202e \x7f end"
CONTROL = set("\x00\x07\x08\x0c\r\x1b\x7f\x9b\u202e\u2066")


def control_characters(text: str) -> set[str]:
    return CONTROL & set(text)


@pytest.mark.parametrize("printed", [HOSTILE, Text(HOSTILE), Text.assemble("a ", (HOSTILE, "red"))])
def test_printed_text_has_no_control_characters(capsys: Capture, printed: str | Text) -> None:
    console().print(printed, soft_wrap=True)
    printed = capsys.readouterr().out
    assert not control_characters(printed)
    assert "\\u001b[2J" in printed
    assert printed.endswith("end\n")


def test_a_cell_of_a_table_has_no_control_characters(capsys: Capture) -> None:
    table = plain_table("device")
    table.add_row(HOSTILE)
    console().print(table)
    assert not control_characters(capsys.readouterr().out)


def test_colours_are_printed_on_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console().print(Text("won", "green"))
    assert "\x1b[32mwon" in capsys.readouterr().out


def test_line_breaks_are_kept(capsys: Capture) -> None:
    console().print("one\ntwo", soft_wrap=True)
    assert capsys.readouterr().out == "one\ntwo\n"


def test_escaping_does_not_change_the_values_of_json(capsys: Capture) -> None:
    print_json({"log": HOSTILE, "time": "3 µs"})
    printed = capsys.readouterr().out
    assert not control_characters(printed)
    assert json.loads(printed) == {"log": HOSTILE, "time": "3 µs"}


def test_text_and_errors_have_no_control_characters(capsys: Capture) -> None:
    print_text(HOSTILE)
    complain(f"no op `{HOSTILE}`", HOSTILE)
    output, errors = capsys.readouterr()
    assert not control_characters(output + errors)


def test_details_of_a_hostile_kernel_have_no_control_characters(capsys: Capture) -> None:
    hostile = Kernel(kernel(1).text + f"// {HOSTILE}\n")
    verdict = replace(failed(hostile.id), log=HOSTILE, device=replace(GPU, name=HOSTILE))
    reply = replace(failed_reply(HOSTILE), failure=HOSTILE, proposer=HOSTILE, operator=HOSTILE)
    output = console()
    for part in (*kernel_details(hostile, [reply], [(verdict, PYTORCH)], [], 100), *reply_details(reply)):
        output.print(part, soft_wrap=True)
    output.print(difference(kernel(2), hostile), soft_wrap=True)
    assert not control_characters(capsys.readouterr().out)


def test_a_pipe_without_a_terminal_gets_80_columns_and_a_pager_those_of_its_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("evolve.report.words.sys.__stderr__", None)
    monkeypatch.setattr("evolve.report.words.sys.__stdin__", None)
    assert console().width == 80
    main, terminal = os.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 57, 0, 0))
    with os.fdopen(terminal) as stream:
        monkeypatch.setattr("evolve.report.words.sys.__stdin__", stream)
        assert console().width == 57
    os.close(main)


def test_a_terminal_shows_errors_and_hints_broken_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    message, hint = "there is no kernel whose id begins like this one", "`evolve top` shows the kernels that are alive"
    complain(message, hint)
    assert capsys.readouterr().err == f"error: {message}\n       {hint}\n"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("evolve.report.words.Console.is_terminal", True)
    complain(message, hint)
    lines = capsys.readouterr().err.splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines).split()) == f"error: {message} {hint}"
