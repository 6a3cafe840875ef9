import json
from dataclasses import replace

import pytest
from records import GPU, failed, failed_reply, kernel
from rich.text import Text

from archive.kernel import archived
from evolve.report.kernel import difference, kernel_details, reply_details
from evolve.report.tables import plain_table
from evolve.report.words import complain, console, print_json, print_text

Capture = pytest.CaptureFixture[str]
HOSTILE = "\x1b[2J\x1b]52;c;ZWNobw==\x07 \x9b31m \u202e \x7f end"
STEERING = set("\x00\x07\x08\x0c\r\x1b\x7f\x9b\u202e\u2066")


def steered(text: str) -> set[str]:
    return STEERING & set(text)


@pytest.mark.parametrize("printed", [HOSTILE, Text(HOSTILE), Text.assemble("a ", (HOSTILE, "red"))])
def test_nothing_that_is_printed_steers_the_terminal(capsys: Capture, printed: str | Text) -> None:
    console().print(printed, soft_wrap=True)
    shown = capsys.readouterr().out
    assert not steered(shown)
    assert "\\u001b[2J" in shown
    assert shown.endswith("end\n")


def test_a_cell_of_a_table_does_not_either(capsys: Capture) -> None:
    table = plain_table("device")
    table.add_row(HOSTILE)
    console().print(table)
    assert not steered(capsys.readouterr().out)


def test_colours_of_our_own_still_reach_a_terminal(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console().print(Text("won", "green"))
    assert "\x1b[32mwon" in capsys.readouterr().out


def test_lines_and_tabs_stay_what_they_are(capsys: Capture) -> None:
    console().print("one\ntwo", soft_wrap=True)
    assert capsys.readouterr().out == "one\ntwo\n"


def test_json_is_read_back_as_it_was_and_steers_nothing(capsys: Capture) -> None:
    print_json({"log": HOSTILE, "time": "3 µs"})
    shown = capsys.readouterr().out
    assert not steered(shown)
    assert json.loads(shown) == {"log": HOSTILE, "time": "3 µs"}


def test_text_and_errors_are_shown_without_it(capsys: Capture) -> None:
    print_text(HOSTILE)
    complain(f"no op `{HOSTILE}`", HOSTILE)
    output, errors = capsys.readouterr()
    assert not steered(output + errors)


def test_no_part_of_a_kernels_story_steers_the_terminal(capsys: Capture) -> None:
    hostile = archived(kernel(1).text + f"// {HOSTILE}\n")
    verdict = replace(failed(hostile.id), log=HOSTILE, device=replace(GPU, name=HOSTILE))
    reply = replace(failed_reply(HOSTILE), failure=HOSTILE, proposer=HOSTILE, operator=HOSTILE)
    shown = console()
    for part in (*kernel_details(hostile, [reply], [verdict], [], 100), *reply_details(reply)):
        shown.print(part, soft_wrap=True)
    shown.print(difference(kernel(2), hostile), soft_wrap=True)
    assert not steered(capsys.readouterr().out)
