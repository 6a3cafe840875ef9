"""The pages in a real browser: links, sorting, filters, saving, live updates, and reports opened from a file."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import shipped_measurements
import shown_archive
from browser import CHROMIUM, Browser, browser
from command import environment
from shown_archive import H200, RUNS

from archive.sqlite import open_archive
from evolve.pages.one_file import report
from evolve.pages.svg import Bar, BarGroup, bars

pytest.importorskip("uvicorn")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium"),
]
BEST = shown_archive.champion()
PAGES = (
    "", "runs", "op/softmax", "op/gelu", f"kernel/{BEST.id}", f"run/{RUNS['softmax'][0]}", "compare/devices/softmax",
    f"compare/kernels/{BEST.id}/{shown_archive.broken().id}", f"compare/runs/{'/'.join(RUNS['softmax'])}",
)  # fmt: skip
WIDTHS = {"desk": 1200, "phone": 390}
AXE = os.environ.get("EVOLVE_AXE", "")  # path of axe.min.js, which `npm pack axe-core` downloads


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browsed") / "archive.db"
    shown_archive.fill(path).close()
    return path


# The command, in a process whose archives leave out shipped measurements, which would hide the times of a test.
COMMAND = f"""
import sys
sys.path.insert(0, {str(Path(shipped_measurements.__file__).parent)!r})
import shipped_measurements
from archive import seeds
from evolve.cli.app import main
seeds.measurements = shipped_measurements.measured_elsewhere
sys.exit(main())
"""


def served(path: Path) -> tuple[subprocess.Popen[str], str]:
    """Start the server of an archive; return it and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", "--port", "0", "--archive", str(path)],
        env=environment({"PYTHONUNBUFFERED": "1"}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout
    return process, process.stdout.readline().split()[0]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """End a server as Ctrl-C does; return its exit code and its output since it began to listen."""
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    return process.returncode, printed


@pytest.fixture(scope="module")
def site(path: Path) -> Iterator[str]:
    process, address = served(path)
    yield address
    assert ended(process)[0] == 130


@pytest.fixture(scope="module")
def written(path: Path) -> str:
    """Return the address of a report of the archive."""
    file = path.with_name("report.html")
    store = open_archive(path, read_only=True)
    file.write_text(report(store, []), encoding="utf-8")
    store.close()
    return f"file://{file}"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def tab(opened: Browser) -> Browser:
    opened.view()
    opened.open("about:blank")
    opened.complaints.clear()
    opened.requests.clear()
    return opened


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_shown_without_errors_and_fits_the_window(tab: Browser, site: str, page: str, width: int) -> None:
    tab.view(width, 800, dark=width < 800)
    tab.open(f"{site}{page}")
    assert tab.run("document.querySelector('h1').textContent.trim().length") > 3
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert not tab.complaints


def test_no_text_is_cut_off_at_the_edge_of_a_plot(tab: Browser, site: str) -> None:
    bar = bars("slow", [BarGroup("65536×65536 bf16", [Bar(12_345.6, "12346 µs autotune", "b-autotune")])])
    tab.view(390, 800)
    tab.open(f"{site}op/softmax")
    tab.run(f"document.querySelector('main').insertAdjacentHTML('beforeend', {json.dumps(bar)})")
    beyond = tab.run(
        "[...document.querySelectorAll('svg.plot')].flatMap((svg) => [...svg.querySelectorAll('text')]"
        ".filter((text) => text.getBBox().x + text.getBBox().width > svg.viewBox.baseVal.width + 1)"
        ".map((text) => text.textContent))"
    )
    assert beyond == []


@pytest.mark.skipif(not AXE, reason="EVOLVE_AXE names no file with axe-core")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_serious(tab: Browser, site: str, page: str, *, dark: bool) -> None:
    tab.view(1200, 900, dark=dark)
    tab.open(f"{site}{page}")
    assert violations(tab) == []


def violations(tab: Browser) -> list[str]:
    """Return the faults that axe-core finds on the open page."""
    tab.run(f"{Path(AXE).read_text()}; 0")
    found: list[str] = tab.run(
        "axe.run(document, {resultTypes: ['violations']})"
        ".then((all) => all.violations.map((one) => `${one.impact}: ${one.help}: ${one.nodes[0].html}`))"
    )
    return found


@pytest.mark.skipif(not AXE, reason="EVOLVE_AXE names no file with axe-core")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "page", ["/", "op/", "kernel/", "run/", "compare/kernels/", "compare/devices/", "compare/runs/"]
)
def test_axe_finds_nothing_serious_in_the_one_file(tab: Browser, written: str, page: str, *, dark: bool) -> None:
    tab.view(1200, 900, dark=dark)
    tab.open(written)
    address = tab.run(f"document.querySelector('section.page[data-page^=\"{page}\"]').dataset.page.split(' ')[0]")
    tab.run(f"location.hash = '#/{address.lstrip('/')}'")
    tab.until(f"document.querySelector('section.page:not([hidden])').dataset.page.startsWith('{address}')")
    # Axe skips hidden elements, but that would take half a minute.
    tab.run("document.querySelectorAll('section.page[hidden]').forEach((other) => other.remove())")
    assert violations(tab) == []


def test_every_link_of_every_page_can_be_followed(tab: Browser, site: str) -> None:
    waiting, seen = [site], set[str]()
    while waiting and len(seen) < 40:
        address = waiting.pop(0)
        seen.add(address)
        tab.open(address)
        links: list[str] = tab.run("[...document.querySelectorAll('a[href]')].map((a) => a.href?.baseVal ?? a.href)")
        own = [link for link in links if "#" not in link and not link.endswith(".cu")]
        waiting += [one for one in dict.fromkeys(site.rstrip("/") + o if o[0] == "/" else o for o in own)
                    if one not in seen and one not in waiting]  # fmt: skip
    assert len(seen) == 40
    assert not tab.complaints


def test_nothing_that_a_model_wrote_became_an_element(tab: Browser, site: str) -> None:
    tab.open(f"{site}kernel/{BEST.id}")
    assert tab.run("document.querySelectorAll('#injected, img, iframe, main script').length") == 0
    assert "alert('note')" in tab.run("document.querySelector('main').textContent")
    assert not tab.complaints


def test_a_column_is_sorted_by_its_heading(tab: Browser, site: str) -> None:
    tab.open(f"{site}run/{RUNS['softmax'][0]}")
    table = "document.querySelector('table[data-name^=found]')"
    column = f"[...{table}.tBodies[0].rows].map((row) => row.cells[2].textContent.trim())"
    tab.run(f"{table}.tHead.rows[0].cells[2].querySelector('button').click()")
    down = tab.run(column)
    assert tab.run(f"{table}.tHead.rows[0].cells[2].getAttribute('aria-sort')") == "descending"
    tab.run(f"{table}.tHead.rows[0].cells[2].querySelector('button').click()")
    numbers = [float(one.rstrip("x")) for one in down]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) > 3
    assert tab.run(column) == down[::-1] or sorted(numbers) == [float(one.rstrip("x")) for one in tab.run(column)]


def test_rows_are_filtered_and_only_those_are_saved(tab: Browser, site: str) -> None:
    tab.open(f"{site}op/softmax")
    tools = "document.querySelector('table[data-name=population-softmax]').closest('.table').previousElementSibling"
    saved = tab.run(
        f"""(async () => {{
            let saved;
            URL.createObjectURL = (blob) => {{ saved = blob; return "blob:none"; }};
            HTMLAnchorElement.prototype.click = () => {{}};
            const field = {tools}.querySelector("input");
            field.value = "{BEST.id[:8]}";
            field.dispatchEvent(new Event("input"));
            {tools}.querySelector("button").click();
            return await saved.text();
        }})()"""
    )
    heading, row = saved.strip().split("\r\n")
    assert heading.startswith('"#","kernel","mean"')
    assert BEST.id[:8] in row
    assert '"2.32","3/3"' in row  # the file has numbers without the units that the page shows
    assert "<script>" in row  # the file is plain text, so nothing is escaped


def test_a_cell_that_begins_like_a_formula_is_quoted(tab: Browser, site: str) -> None:
    tab.open(f"{site}runs")
    saved = tab.run(
        """(async () => {
            let saved;
            URL.createObjectURL = (blob) => { saved = blob; return "blob:none"; };
            HTMLAnchorElement.prototype.click = () => {};
            document.querySelector("table.data tbody td").textContent = "=HYPERLINK(1)";
            document.querySelector(".tools button").click();
            return await saved.text();
        })()"""
    )
    assert '"\'=HYPERLINK(1)"' in saved


def test_a_page_changes_while_a_run_writes_and_keeps_its_filter(tab: Browser, site: str, path: Path) -> None:
    tab.open(f"{site}op/softmax")
    tab.until("document.getElementById('status').textContent === 'live'")
    tools = "document.querySelector('table[data-name=population-softmax]').closest('.table').previousElementSibling"
    tab.run(f"(() => {{ const f = {tools}.querySelector('input'); f.value = 'THREADS'; "
            "f.dispatchEvent(new Event('input')); f.blur(); })()")  # fmt: skip
    store = open_archive(path)
    new = replace(shown_archive.passed(BEST, H200, 1.01, 1_900_000_000.0), seconds=0.7)
    store.append(new)
    store.close()
    tab.until("document.querySelector('[data-part=champions]').textContent.includes('30.3')")
    assert tab.run(f"{tools}.querySelector('input').value") == "THREADS"
    assert not tab.complaints


def test_elements_that_did_not_change_keep_the_focus_and_their_place(tab: Browser, site: str, path: Path) -> None:
    tab.open(f"{site}kernel/{BEST.id}")
    tab.until("document.getElementById('status').textContent === 'live'")
    tab.run("document.querySelector('button.copy').focus()")
    with closing(open_archive(path)) as store:
        store.append(shown_archive.passed(shown_archive.champion("gelu"), H200, 1.01, 1_900_000_001.0))
    tab.until("document.getElementById('status').textContent.startsWith('updated')")
    assert tab.run("document.activeElement.matches('button.copy')")
    assert not tab.complaints


def test_an_empty_page_is_filled_once_a_record_is_written(
    tab: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "empty.db"
    open_archive(path).close()
    process, address = served(path)
    request.addfinalizer(process.kill)
    tab.open(address)
    assert "no evaluations yet" in tab.run("document.body.innerText")
    tab.until("document.getElementById('status').textContent === 'live'")
    shown_archive.fill(path, 4).close()
    tab.until("document.querySelectorAll('table.data tbody tr').length > 3")
    tab.until("document.querySelector('[data-part=ops] th button') !== null")
    assert not tab.complaints


def test_a_server_ends_without_output_and_its_open_pages_report_the_end(tab: Browser, path: Path) -> None:
    process, address = served(path)
    tab.open(address)
    tab.until("document.getElementById('status').textContent === 'live'")
    code, printed = ended(process)
    assert code == 130
    assert "Traceback" not in printed
    assert "ERROR" not in printed
    tab.until("document.getElementById('status').textContent === 'no connection'")


def pressed(tab: Browser, key: str, code: int, text: str = "") -> None:
    """Press a key and release it."""
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)


@pytest.mark.parametrize("key", [("Enter", 13, "\r"), (" ", 32, " ")], ids=["enter", "space"])
@pytest.mark.parametrize("whole", [False, True], ids=["served", "one file"])
def test_the_keyboard_copies_a_kernel(
    tab: Browser, site: str, written: str, key: tuple[str, int, str], *, whole: bool
) -> None:
    tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    tab.open(f"{written}#/kernel/{BEST.id}" if whole else f"{site}kernel/{BEST.id}")
    button = "document.activeElement.matches('button.copy')"
    for _ in range(60):
        pressed(tab, "Tab", 9)
        if tab.run(button):
            break
    assert tab.run(button)
    assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    pressed(tab, *key)
    tab.until("document.activeElement.textContent === 'Copied'")
    # a screen reader announces the change
    assert tab.run("document.activeElement.getAttribute('aria-live')") == "polite"
    assert tab.run("navigator.clipboard.readText()") == BEST.text
    tab.until("document.activeElement.textContent === 'Copy'")
    assert not tab.complaints


def test_where_the_clipboard_is_closed_the_whole_kernel_is_selected(tab: Browser, site: str) -> None:
    tab.open(f"{site}kernel/{BEST.id}")
    tab.run("navigator.clipboard.writeText = () => Promise.reject(new Error('closed'))")
    tab.run("document.querySelector('button.copy').click()")
    tab.until("document.querySelector('button.copy').textContent === 'Press Ctrl-C'")
    assert tab.run("getSelection().toString().trim()") == BEST.text.strip()


def test_the_keyboard_reaches_the_content_and_the_tables(tab: Browser, site: str) -> None:
    tab.open(site)
    pressed(tab, "Tab", 9)
    assert tab.run("document.activeElement.className") == "skip"
    assert tab.run("document.querySelector('.table').tabIndex") == 0


def test_the_one_file_report_works_from_disk_without_a_network(tab: Browser, written: str) -> None:
    tab.open(written)
    shown = "[...document.querySelectorAll('section.page')].filter((page) => !page.hidden)"
    assert tab.run(f"{shown}.map((page) => page.dataset.page)") == ["/"]
    tab.run("document.querySelector('.lead a').click()")
    tab.until(f"{shown}[0].dataset.page.startsWith('op/')")
    tab.run(f"{shown}[0].querySelector('.lead a.id').click()")
    tab.until(f"{shown}[0].dataset.page.startsWith('kernel/')")
    assert tab.run(f"{shown}[0].querySelector('pre.source').textContent").startswith("/*---")
    tab.run("history.back()")
    tab.until(f"{shown}[0].dataset.page.startsWith('op/')")
    assert [one for one in tab.requests if not one.startswith(("file:", "about:"))] == []
    assert not tab.complaints


def test_the_report_can_be_read_without_scripts(tab: Browser, written: str) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(written)
        text = tab.call("Runtime.evaluate", expression="document.body.innerText")["result"].get("value", "")
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "Lineage" in text
    assert os.linesep in text
