"""The pages as one HTML file, which needs no server and makes no request."""

import base64
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from markupsafe import Markup

from archive.sqlite import SqliteStore
from archive.store import Store
from archive.summaries import EvaluationSummary
from evolve.pages import addresses, comparison
from evolve.pages.addresses import InOneFile
from evolve.pages.kernel_page import kernel_page
from evolve.pages.op_page import OpPage, op_page
from evolve.pages.overview import overview
from evolve.pages.render import Page, Renderer, document, static
from evolve.pages.roofline import roofline
from evolve.pages.run_page import run_lines, run_page
from evolve.pages.svg import element
from evolve.report.standing import devices

# number of kernel pages per op and device: champions and their ancestors, then the population and its ancestors
KERNELS = 30
# number of kernel pages in one file, of 30 to 100 kB each; if there are many ops, each gets an equal share
IN_ALL = 1_000
RUNS = 10  # number of run pages per op and device; the newest runs get one
COMPARED = 6  # number of comparisons per op and device of kernels with the fittest, and of runs with the newest

Drawn = Callable[[Renderer, str], Iterator[Page]]


def report(store: SqliteStore, ops: Sequence[str], kernels: int = KERNELS) -> str:
    """Return a document with the overview, and the pages of these ops, their runs and their leading kernels."""
    views = list(_op_views(store, ops))
    most = min(kernels, IN_ALL // max(1, len(views)))
    leading = [_leading(view, most) for view in views]
    shown = dict.fromkeys(kernel_id for of_view in leading for kernel_id in of_view)
    runs = dict.fromkeys(run.id for view in views for run in view.runs[:RUNS])
    compared = _comparisons(store, views, set(shown))
    known = {
        addresses.OVERVIEW,
        addresses.RUNS,
        *(addresses.op_page(view.standing.op) for view in views),
        *(addresses.op_page(view.standing.op, view.standing.device.key) for view in views),
        *map(addresses.kernel_page, shown),
        *map(addresses.run_page, runs),
        *(address for addresses_of_page in compared for address in addresses_of_page.split(" ")),
    }
    renderer = Renderer(InOneFile(known))
    op_pages = [_op_page(renderer, view, len(of_view)) for view, of_view in zip(views, leading, strict=True)]
    pages = [renderer.overview(overview(store, store.path.name, ops)), *op_pages,
             *_pages(store, renderer, [*shown], [*runs], ops),
             *(page for named, make in compared.items() for page in make(renderer, named))]  # fmt: skip
    body = Markup("\n").join(_section(page) for page in pages)
    title = f"{', '.join(ops)}" if ops else "Kernels"
    style, script = static("style.css"), static("pages.js")
    return document(
        Page(addresses.OVERVIEW, title, body),
        style=element("style", Markup(style)),  # noqa: S704 - our own file
        script=element("script", Markup(script)),  # noqa: S704 - our own file
        live=False,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; "
        "form-action 'none'",
    )


def _op_views(store: Store, ops: Sequence[str]) -> Iterator[OpPage]:
    for op in ops or sorted(store.count(EvaluationSummary, "op")):
        for info in devices(store, op):
            if view := op_page(store, op, info.key):
                yield view


def _leading(view: OpPage, most: int) -> list[str]:
    """Return the kernels that get a page: all champions and their ancestors, then others of the family up to `most`."""
    now = view.standing
    champions = dict.fromkeys(one.kernel_id for one in now.champions)
    kept = list(champions | dict.fromkeys(view.family.above(champions)))
    others = dict.fromkeys([*(one.kernel_id for one in now.population), *view.family.ids])
    return kept + [one for one in others if one not in kept][: max(0, most - len(kept))]


def _comparisons(store: Store, views: Sequence[OpPage], shown: Collection[str]) -> dict[str, Drawn]:
    """Return functions that draw comparisons, by address: kernels with the fittest, runs with the newest, devices."""
    found: dict[str, Drawn] = {}
    for view in views:
        op = view.standing.op
        kernels = [one.kernel_id for one in view.standing.population if one.kernel_id in shown]
        for one in kernels[1 : COMPARED + 1] if kernels and kernels[0] == view.fittest else ():
            found[addresses.kernels_compared(view.fittest, one)] = partial(_kernels, store, (view.fittest, one))
        for run in view.runs[1 : min(RUNS, COMPARED + 1)]:
            both = view.runs[0].id, run.id
            named = f"{addresses.runs_compared(*both)} {addresses.runs_compared(*reversed(both))}"
            found[named] = partial(_runs, store, both)
        if len(view.devices) > 1:
            found[addresses.devices_compared(op)] = partial(_devices, store, op)
    return found


def _kernels(store: Store, both: tuple[str, str], renderer: Renderer, named: str) -> Iterator[Page]:
    if view := comparison.kernels_compared(store, *both):
        yield replace(renderer.kernels_compared(view), address=named)


def _runs(store: Store, both: tuple[str, str], renderer: Renderer, named: str) -> Iterator[Page]:
    if view := comparison.runs_compared(store, *both):
        yield replace(renderer.runs_compared(view), address=named)


def _devices(store: Store, op: str, renderer: Renderer, named: str) -> Iterator[Page]:
    if view := comparison.devices_compared(store, op):
        yield replace(renderer.devices_compared(view), address=named)


def _op_page(renderer: Renderer, view: OpPage, kernels: int) -> Page:
    """Return an op's page, which says how many kernels and runs have pages in the file."""
    now, address = view.standing, addresses.op_page(view.standing.op, view.standing.device.key)
    held = []
    if kernels < now.judged:
        held.append(f"{kernels:,} of the {now.judged:,} kernels evaluated here: champions, their ancestors, and others "
                    "that are alive")  # fmt: skip
    if len(view.runs) > RUNS:
        held.append(f"the newest {RUNS} of {len(view.runs):,} runs")
    page = renderer.op(view, address, roofline(now.op, now.device, now.champions), "; ".join(held))
    alias = addresses.op_page(now.op) if view.main else ""
    return Page(f"{page.address} {alias}".strip(), page.title, page.body)


def _pages(
    store: SqliteStore, renderer: Renderer, kernels: Sequence[str], runs: Sequence[str], ops: Sequence[str]
) -> Iterator[Page]:
    for kernel_id in kernels:
        if view_of_kernel := kernel_page(store, kernel_id):
            yield renderer.kernel(view_of_kernel)
    for run in runs:
        if view_of_run := run_page(store, run):
            yield renderer.run(view_of_run)
    yield renderer.runs([line for op in ops or [""] for line in run_lines(store, op)])


def _section(page: Page) -> Markup:
    """Return a page as a section that the script shows at its addresses. Without scripts, all sections are shown."""
    return element("section", page.body, class_="page", data_page=page.address or "/", data_title=page.title)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
