"""The server: requests that it answers, headers of its answers, and no writes to the archive."""

import asyncio
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import shown_archive
from commandline import evolve as evolve_command
from each import sampled
from shown_archive import RUNS, SCRIPT

from archive.records import Leg
from archive.runs import Run
from archive.sqlite import SqliteStore, open_archive

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from starlette.testclient import TestClient

from evolve.pages import server
from evolve.pages.roofline import WorkAside
from evolve.pages.server import HOST, application, listening, stamp
from evolve.pages.site import Site

HERE = "http://localhost:8642"
BEST = shown_archive.champion()
WORK = WorkAside()  # starts its other process once for all tests


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "archive.db"
    shown_archive.fill(path).close()
    return path


@pytest.fixture
def client(path: Path) -> TestClient:
    return TestClient(application(path, Site(work=WORK)), base_url=HERE, follow_redirects=False)


@pytest.fixture
def writer(path: Path) -> Iterator[SqliteStore]:
    store = open_archive(path)
    yield store
    store.close()


@pytest.mark.parametrize("host", ["localhost", "localhost:8642", "127.0.0.1:9", "[::1]:8642", "LOCALHOST"])
def test_a_loopback_host_is_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["example.com", "localhost.example.com", "127.0.0.1.nip.io:8642", "192.168.1.2", "", "[", "localhost@evil"]
)
def test_another_host_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "softmax" not in answer.text


def test_two_hosts_are_refused() -> None:
    headers = [(b"host", b"localhost"), (b"host", b"example.com")]
    answer = server.refused("GET", headers)
    assert answer is not None
    assert answer.status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_read_requests_are_answered(client: TestClient, method: str) -> None:
    assert client.request(method, "/").status_code == 405


def test_other_sites_may_link_to_a_page_but_not_read_it(client: TestClient) -> None:
    across = {"sec-fetch-site": "cross-site", "origin": "https://example.com"}
    assert client.get("/", headers={**across, "sec-fetch-mode": "cors"}).status_code == 403
    linked = client.get("/", headers={**across, "sec-fetch-mode": "navigate"})
    assert linked.status_code == 200
    assert not [name for name in linked.headers if name.startswith("access-control")]


@pytest.mark.parametrize("page", ["/", f"/kernel/{BEST.id}", f"/kernel/{BEST.id}.cu", "/nowhere", "/static/pages.js"])
def test_every_answer_forbids_inline_scripts_and_frames(client: TestClient, page: str) -> None:
    headers = client.get(page).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_text_of_a_model_is_shown_as_text(client: TestClient) -> None:
    text = client.get(f"/kernel/{BEST.id}").text
    assert text.count("<script") == 1
    assert '<script src="/static/pages.js"></script>' in text
    assert SCRIPT.replace("<", "&lt;").split(">")[0] in text
    assert '<h1 id="injected"' not in text
    assert client.get("/kernel/%3Cscript%3Ealert(1)%3C/script%3E").text.count("<script") == 1


def test_without_gpu_times_an_op_names_its_fittest_kernel(client: TestClient) -> None:
    page = client.get("/op/softmax/emulated%20Some%20CPU").text
    assert re.search(r"The fittest kernel here is <a class=.id. href=./kernel/\w+.>\w+</a>\.</p>\s*<p>Its idea: ", page)
    assert "as fast as the best of PyTorch" not in page


def test_the_reason_of_a_failure_is_at_the_top_of_the_page(client: TestClient) -> None:
    summary = client.get(f"/kernel/{shown_archive.broken().id}").text.partition("<h2>Source</h2>")[0]
    assert "compile error</strong> on NVIDIA H200: <bdi>kernel.cu(3): error: \\u001b[31mred" in summary


def test_the_first_characters_of_an_id_lead_to_its_page(client: TestClient) -> None:
    answer = client.get(f"/kernel/{BEST.id[:9]}")
    assert (answer.status_code, answer.headers["location"]) == (302, f"/kernel/{BEST.id}")


def test_the_first_characters_of_two_ids_lead_to_their_comparison(client: TestClient) -> None:
    broken, runs = shown_archive.broken().id, RUNS["softmax"]
    answer = client.get(f"/compare/kernels/{BEST.id[:9]}/{broken}")
    assert (answer.status_code, answer.headers["location"]) == (302, f"/compare/kernels/{BEST.id}/{broken}")
    answer = client.get(f"/compare/runs/{runs[0][:6]}/{runs[1][:6]}")
    assert (answer.status_code, answer.headers["location"]) == (302, f"/compare/runs/{'/'.join(runs)}")


def test_a_kernel_can_be_saved_as_it_is(client: TestClient) -> None:
    answer = client.get(f"/kernel/{BEST.id}.cu")
    assert answer.text == BEST.text
    assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    "page", ["/kernel/ffff", "/run/nix", "/op/none", "/op/softmax/other", "/x/y/z", "/static/..%2f"]
)
def test_a_missing_page_is_explained(client: TestClient, page: str) -> None:
    assert client.get(page).status_code == 404


@pytest.mark.parametrize(
    "page",
    sampled(
        ["/", "/runs", "/op/softmax", f"/run/{RUNS['softmax'][0]}", f"/kernel/{BEST.id}"],
        quick=[f"/kernel/{BEST.id}"],
    ),
)
def test_every_link_of_a_page_is_answered(client: TestClient, page: str) -> None:
    found = sorted(set(re.findall(r'(?:href|src)="(/[^"]*)"', client.get(page).text)))
    assert len(found) > 3
    kinds = [list(alike) for _, alike in itertools.groupby(found, lambda link: link.split("/")[1])]
    some = [link for alike in kinds for link in alike[:2]]
    assert {link: client.get(link).status_code for link in some} == dict.fromkeys(some, 200)


def test_a_page_shows_records_that_were_written_since(client: TestClient, writer: SqliteStore) -> None:
    before = client.get(f"/run/{RUNS['gelu'][0]}").text
    writer.append(Leg(RUNS["gelu"][0], 2_000_000_000.0))
    assert client.get(f"/run/{RUNS['gelu'][0]}").text != before


def test_without_an_archive_the_shipped_kernels_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "none yet" / "archive.db"
    client = TestClient(application(path, Site(work=WORK)), base_url=HERE)
    assert "Kernels that ship with evolve" in client.get("/").text
    assert not path.parent.exists()
    path.parent.mkdir()
    shown_archive.fill(path, 4).close()
    assert "Kernels in archive.db" in client.get("/").text


def test_a_run_that_has_only_begun_has_no_empty_tables_and_no_dead_links(
    client: TestClient, writer: SqliteStore
) -> None:
    begun = Run("b06000000000", "gelu", "emulated nothing yet", "offline", 0, 1_990_000_000.0)
    writer.append(begun)
    page = client.get(f"/run/{begun.id}").text
    assert "None of its kernels is judged yet" in page
    assert "Spending" not in page
    links = re.findall(r'href="(/[^"]*)"', page + client.get("/runs").text)
    assert {client.get(link).status_code for link in links} == {200}
    assert f'Newest run: <a href="/run/{begun.id}">' in client.get("/").text


def test_serving_writes_nothing(client: TestClient, path: Path) -> None:
    before = stamp(path)
    for page in ("/", "/op/softmax", f"/kernel/{BEST.id}", "/runs"):
        client.get(page)
    assert stamp(path) == before


def test_a_change_of_the_archive_is_an_event(path: Path, writer: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)

    async def heard() -> list[str]:
        changes = server.changes(server.Pages(path, Site()))
        found = [await anext(changes)]
        writer.append(Leg(RUNS["gelu"][0], 2_000_000_001.0))
        found.append(await asyncio.wait_for(anext(changes), 5))
        await changes.aclose()
        return found

    first, second = asyncio.run(heard())
    assert first.startswith("retry:")
    assert second.startswith("event: changed\n")


def test_events_end_when_the_server_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)
    ending = iter([False, False, True])

    async def heard() -> list[str]:
        return [event async for event in server.changes(server.Pages(path, Site()), lambda: next(ending))]

    assert asyncio.run(asyncio.wait_for(heard(), 5)) == ["retry: 2000\n\n"]


def test_the_server_listens_on_the_loopback_address_only() -> None:
    bound = listening(0)
    try:
        assert bound.getsockname()[0] == HOST == "127.0.0.1"
    finally:
        bound.close()


def test_a_port_in_use_is_an_error_with_a_hint(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = listening(0)
    taken.listen()
    try:
        code, _, errors = evolve_command(capsys, "serve", "--port", taken.getsockname()[1], "--archive", path)
    finally:
        taken.close()
    assert code == 2
    assert "--port" in errors


def test_kernels_runs_and_devices_can_be_compared(client: TestClient) -> None:
    kernels = client.get(f"/compare/kernels/{shown_archive.broken().id}/{BEST.id}").text
    assert "compile error" in kernels
    assert "34.3–35.3" in kernels
    runs = client.get(f"/compare/runs/{'/'.join(RUNS['softmax'])}").text
    assert all(run[:8] in runs for run in RUNS["softmax"])
    assert "best so far over dollars" in runs
    devices = client.get("/compare/devices/softmax").text
    assert '<th scope="col">A100</th>' in devices
    assert BEST.id[:8] in devices
    for page in (kernels, devices):
        assert '<th scope="row" title="rows=8192 cols=4096 bfloat16">8192×4096 bf16</th>' in page


@pytest.mark.parametrize(
    "page", ["kernels/a/b", "runs/a/b", "devices/none", f"runs/{RUNS['softmax'][0]}/{RUNS['gelu'][0]}", "kernels", ""]
)
def test_an_impossible_comparison_is_explained(client: TestClient, page: str) -> None:
    assert client.get(f"/compare/{page}").status_code == 404


def test_without_the_extra_it_is_named(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import evolve.pages

    monkeypatch.delitem(sys.modules, "evolve.pages.server")
    monkeypatch.delattr(evolve.pages, "server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, errors = evolve_command(capsys, "serve", "--archive", path)
    assert code == 2
    assert "evolve-kernels[web]" in errors
    assert "evolve report" in errors
