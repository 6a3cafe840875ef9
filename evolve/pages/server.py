"""The pages served to a browser on this machine: loopback only, read-only, live while a run writes."""

import asyncio
import contextlib
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote_to_bytes, urlsplit

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from archive import ArchiveError, seeds
from archive.plan import PlanError
from archive.sqlite import SqliteStore, open_archive
from evolve.errors import UserError
from evolve.pages import addresses
from evolve.pages.addresses import Absent, Moved
from evolve.pages.render import Page, Renderer, document, static
from reference_ops.listing import user_cache_dir

HOST = "127.0.0.1"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
STATIC = {"style.css": "text/css", "pages.js": "text/javascript"}
POLL_SECONDS, QUIET_SECONDS = 0.5, 15.0
PATIENCE = 10  # smallest time between two announcements of changed pages, as a multiple of the time to render them
KEPT = 64  # number of pages that are kept

Stamp = tuple[tuple[int, int], ...]


class Answering(Protocol):
    """Site that makes the pages of an archive."""

    def page(self, store: SqliteStore, words: tuple[str, ...]) -> Page | str:
        """Return the page with this address, or plain text to save; raises Absent or Moved."""

    def prepare(self, store: SqliteStore) -> None:
        """Load in advance the data of the first pages."""


def stamp(archive: Path) -> Stamp:
    """Return a value that changes whenever the archive is written: the times and sizes of its file and its log."""
    found = []
    for path in (archive, archive.with_name(f"{archive.name}-wal")):
        try:
            stat = path.stat()
        except OSError:
            found.append((0, 0))
            continue
        # An empty log does not count: reading an archive creates and removes one.
        found.append((stat.st_mtime_ns, stat.st_size) if stat.st_size else (0, 0))
    return tuple(found)


def opened(archive: Path) -> SqliteStore:
    """Open an archive read-only; if there is none yet, open the one that ships with the package."""
    if archive.exists():
        return open_archive(archive, read_only=True)
    return seeds.shipped_alone(user_cache_dir() / "shipped")


@dataclass
class Pages:
    """The pages of one archive. Each page is kept until the archive changes."""

    archive: Path
    site: Answering
    kept: OrderedDict[str, tuple[Stamp, Page | str]] = field(default_factory=OrderedDict)
    cost_seconds: float = 0.0  # time to render the last page

    def get(self, path: str) -> Page | str:
        """Return a page.

        This is called in several threads; a page that two threads request at the same time is rendered twice.
        """
        now, (at, page) = stamp(self.archive), self.kept.get(path, ((), ""))
        if at == now:
            return page
        began = time.monotonic()
        words = tuple(unquote_to_bytes(word).decode(errors="replace") for word in path.split("/") if word)
        with closing(opened(self.archive)) as store:
            page = self.site.page(store, words)
        self.cost_seconds = time.monotonic() - began
        self.kept[path] = now, page
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return page


@dataclass(frozen=True)
class Guard:
    """Filter that passes only read requests from a browser on this machine, and sets the headers of every answer."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.decode().lower() not in HEADERS]
                message["headers"] = kept + [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            refusal = refused(scope["method"], scope["headers"])
            await (refusal or self.app)(scope, receive, with_headers)


def refused(method: str, headers: list[tuple[bytes, bytes]]) -> Response | None:
    """Return the reason to refuse a request: another Host, as after DNS rebinding, another site or another method."""
    given: dict[str, list[str]] = {}
    for name, value in headers:
        given.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    hosts = given.get("host", [])
    if len(hosts) != 1 or _hostname(hosts[0]) not in LOOPBACK:
        return PlainTextResponse("this server answers only to localhost and 127.0.0.1\n", 421)
    if method not in ("GET", "HEAD"):
        return PlainTextResponse("the archive can only be read here\n", 405, {"allow": "GET, HEAD"})
    site, mode = given.get("sec-fetch-site", ["none"]), given.get("sec-fetch-mode", ["navigate"])
    if site[0] == "cross-site" and mode[0] != "navigate":
        return PlainTextResponse("other sites may link to these pages, but not read them\n", 403)
    return None


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def application(archive: Path, site: Answering, ending: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the server's application for one archive. Events end as soon as `ending` says that the server ends."""
    pages = Pages(archive, site)

    async def page(request: Request) -> Response:
        path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1").partition("?")[0]
        return await run_in_threadpool(_answer, pages, path)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        return Response(static(name), media_type=STATIC[name]) if name in STATIC else PlainTextResponse("", 404)

    async def events(_request: Request) -> Response:
        return StreamingResponse(changes(pages, ending), media_type="text/event-stream")

    routes = [
        Route("/static/{name}", file), Route("/events", events), Route("/favicon.ico", _nothing),
        Route("/{rest:path}", page),
    ]  # fmt: skip
    return Guard(Starlette(routes=routes))


async def _nothing(_request: Request) -> Response:
    return Response(status_code=204)


def _answer(pages: Pages, path: str) -> Response:
    try:
        found = pages.get(path)
    except Moved as moved:
        return RedirectResponse(addresses.served(moved.address), 302)
    except Absent as absent:
        return _document(Renderer(addresses.served).absent(absent.title, absent.message), 404)
    except (ArchiveError, PlanError) as error:
        return PlainTextResponse(f"{error}\n", 500)
    return PlainTextResponse(found) if isinstance(found, str) else _document(found)


def _document(page: Page, status: int = 200) -> Response:
    style = Markup('<link rel="stylesheet" href="/static/style.css">')
    script = Markup('<script src="/static/pages.js"></script>')
    text = document(page, style=style, script=script, live=True)
    return Response(text.encode(errors="replace"), status, media_type="text/html")


async def changes(pages: Pages, ending: Callable[[], bool] = lambda: False) -> AsyncGenerator[str]:
    """Yield an event whenever the archive has changed, and a comment at intervals, to detect a closed connection."""
    last, told, quiet = stamp(pages.archive), time.monotonic(), 0.0
    yield "retry: 2000\n\n"
    while not ending():
        await asyncio.sleep(POLL_SECONDS)
        now, quiet = stamp(pages.archive), quiet + POLL_SECONDS
        if now != last and time.monotonic() - told >= PATIENCE * pages.cost_seconds:
            last, told, quiet = now, time.monotonic(), 0.0
            yield "event: changed\ndata: archive\n\n"
        elif quiet > QUIET_SECONDS:
            quiet = 0.0
            yield ": nothing new\n\n"


def listening(port: int) -> socket.socket:
    """Return a socket that listens on the loopback address. Port 0 means any free port."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()  # a browser that connects before the server is ready must wait
    except OSError as error:
        found.close()
        raise UserError(
            f"port {port} of {HOST} cannot be used: {error.strerror}",
            "name another port with --port, or 0 for any free port",
        ) from error
    return found


def serve(archive: Path, site: Answering, bound: socket.socket) -> None:
    """Answer requests until a signal arrives."""
    threading.Thread(target=_prepare, args=(site, archive), daemon=True).start()
    running: list[uvicorn.Server] = []
    app = application(archive, site, lambda: any(one.should_exit for one in running))
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, proxy_headers=False,
        ws="none", timeout_graceful_shutdown=1, lifespan="off",
    )  # fmt: skip
    running.append(uvicorn.Server(config))
    running[0].run(sockets=[bound])


def _prepare(site: Answering, archive: Path) -> None:
    with contextlib.suppress(ArchiveError, PlanError), closing(opened(archive)) as store:
        site.prepare(store)
