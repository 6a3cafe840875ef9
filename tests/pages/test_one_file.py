"""The report in one file: it is complete, makes no requests, and shows everything that a model wrote as text."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import shown_archive
from commandline import evolve
from shown_archive import A100, CPU, H200, RUNS, SCRIPT

from archive.sqlite import open_archive
from archive.summaries import EvaluationSummary, ProposalSummary
from evolve.pages import addresses, one_file
from evolve.pages.one_file import report


class Parsed(HTMLParser):
    """The elements of a document, and the text in each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(attribute))]

    @property
    def pages(self) -> set[str]:
        return {address for named in self.values("data-page") for address in named.split(" ")}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shown") / "archive.db"
    shown_archive.fill(path).close()
    return path


@pytest.fixture(scope="module")
def text(path: Path) -> str:
    return report(open_archive(path, read_only=True), [])


@pytest.fixture(scope="module")
def parsed(text: str) -> Parsed:
    return Parsed(text)


def test_the_report_has_a_page_per_op_and_device_run_and_leading_kernel(parsed: Parsed) -> None:
    champion, broken = shown_archive.champion(), shown_archive.broken()
    ops = {addresses.op_page("softmax", device.key) for device in (H200, A100, CPU)}
    runs = {addresses.run_page(run) for run in RUNS["softmax"]}
    assert {"/", "runs", "op/softmax", *ops, *runs, addresses.kernel_page(champion.id)} <= parsed.pages
    assert addresses.kernel_page(broken.id) not in parsed.pages


def test_every_link_leads_to_a_page_in_the_file(parsed: Parsed) -> None:
    links = [href for href in parsed.values("href") if href != "#content"]
    assert len(links) > 50
    assert {href.removeprefix("#/") or "/" for href in links} <= parsed.pages


def test_the_report_has_no_address_that_a_browser_would_load(parsed: Parsed) -> None:
    assert not parsed.values("src")
    assert all(href.startswith("#") for href in parsed.values("href"))
    assert not {"link", "iframe", "object", "embed", "base", "form", "img"} & {tag for tag, _ in parsed.elements}


def test_the_policy_of_the_report_allows_only_its_own_script_and_style(text: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy


def test_text_of_a_model_is_shown_as_text(parsed: Parsed) -> None:
    """A note, a reply and a log with a script, a prompt with HTML, a log with terminal codes."""
    assert [tag for tag, _ in parsed.elements].count("script") == 1
    assert "injected" not in parsed.values("id")
    assert SCRIPT in "".join(parsed.text)
    assert "{{ 7 * 7 }}" in "".join(parsed.text)


def test_control_characters_are_escaped(text: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "\\u001b[31mred" in text


def test_the_overview_names_the_op_that_gained_most_and_its_kernel(text: str) -> None:
    lead = text[text.index('class="lead"') :]
    assert "gained most on NVIDIA H200" in lead[:600]
    where = (
        "x over the best of PyTorch on average over its 2 workloads, with PyTorch's time where no champion is faster"
    )
    assert where in html.unescape(lead[:900])
    assert shown_archive.champion("gelu").id[:8] in lead[:900]


def test_a_champion_shows_its_times_duel_and_share_of_light(text: str) -> None:
    page = text[text.index(f'data-page="{addresses.kernel_page(shown_archive.champion().id)}"') :]
    for expected in (
        "2.54x",
        "(2.49x–2.59x) against compile",
        "95%",
        "31.2–32.1",
        "racecheck",
        "40 registers",
        "31.4 µs",
    ):
        assert expected in page, expected


def test_emulated_times_are_not_compared_with_pytorch(text: str) -> None:
    page = text[text.index(f'data-page="{addresses.op_page("softmax", CPU.key)}"') :]
    page = page[: page.index('<section class="page"')]
    assert "not GPU times" in page
    assert "eager" not in page


def test_champions_and_their_ancestors_have_a_page_whatever_the_limit(path: Path) -> None:
    store = open_archive(path, read_only=True)
    pages = Parsed(report(store, ["softmax"], kernels=0)).pages
    kernels = {address for address in pages if address.startswith("kernel/")}
    champion = shown_archive.champion()
    (origin,) = store.find(ProposalSummary, kernels=[champion.id])
    assert {addresses.kernel_page(champion.id), addresses.kernel_page(origin.parents[0])} <= kernels
    assert len(kernels) < 8


def test_a_page_gives_the_number_of_kernels_without_a_page(path: Path) -> None:
    store = open_archive(path, read_only=True)
    few = report(store, ["gelu"], kernels=4)
    held = re.findall(r'data-part="held">This file has pages for (\d+) of the (\d+) kernels', few)
    judged = sum(store.count(EvaluationSummary, "op", "gelu", device=H200.key, in_force=True).values())
    kernels = [address for address in Parsed(few).pages if address.startswith("kernel/")]
    assert held == [(str(len(kernels)), str(judged))]


def test_many_ops_share_the_kernels_of_a_file(path: Path, parsed: Parsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_file, "IN_ALL", 20)
    fewer = Parsed(report(open_archive(path, read_only=True), [])).pages
    assert sum(page.startswith("kernel/") for page in fewer) < sum(page.startswith("kernel/") for page in parsed.pages)


def test_the_command_writes_the_file_and_names_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = path.parent / "out.html"
    code, output, _ = evolve(capsys, "report", "gelu", "-o", target, "--archive", path)
    assert code == 0
    assert f"{target}: 1 op," in output
    assert "op/softmax" not in Parsed(target.read_text()).pages


def test_an_op_that_the_archive_lacks_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = evolve(capsys, "report", "relu", "--archive", path)
    assert code == 1
    assert "no evaluations of relu" in errors


def test_a_file_that_cannot_be_written_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = evolve(capsys, "report", "gelu", "-o", path.parent / "absent" / "x.html", "--archive", path)
    assert code == 2
    assert "--out" in errors


def test_the_first_page_names_the_archive_or_the_shipped_kernels(text: str, path: Path) -> None:
    shipped = report(shown_archive.fill(Path(":memory:"), 2), [])
    assert f"<h1>Kernels in {path.name}</h1>" in text
    assert "<h1>Kernels that ship with evolve</h1>" in shipped
