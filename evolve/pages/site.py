"""Site: the pages of an archive by their addresses, and the answer to an address without a page."""

from collections.abc import Callable
from dataclasses import dataclass, field

from archive.kernel import Kernel
from archive.records import DeviceInfo
from archive.runs import Run
from archive.sqlite import SqliteStore
from archive.store import Store
from archive.summaries import EvaluationSummary, KernelSummary
from evolve.devices.choose import policy_of
from evolve.pages import addresses, comparison
from evolve.pages.addresses import Absent, Moved
from evolve.pages.kernel_page import kernel_page
from evolve.pages.op_page import op_page
from evolve.pages.overview import overview
from evolve.pages.render import Page, Renderer
from evolve.pages.roofline import WorkAside, roofline
from evolve.pages.run_page import run_lines, run_page

CANDIDATES = 8
COMPARED_BY_ID = ("kernels", "runs")
Words = tuple[str, ...]


@dataclass
class Site:
    """Site that makes the pages of an archive."""

    renderer: Renderer = field(default_factory=lambda: Renderer(addresses.served))
    work: WorkAside = field(default_factory=WorkAside)

    def page(self, store: SqliteStore, words: Words) -> Page | str:
        """Return the page with this address, or plain text to save; raises Absent or Moved."""
        match words:
            case ():
                return self.renderer.overview(overview(store, store.path.name))
            case ("runs",):
                return self.renderer.runs(run_lines(store))
            case ("op", op) | ("op", op, _):
                return self._op(store, op, "".join(words[2:]))
            case ("kernel", kernel_id):
                return self._kernel(store, kernel_id)
            case ("run", run):
                return self._run(store, run)
            case ("compare", what, *named):
                return self._comparison(store, what, named)
        raise Absent("There is no such page", "Follow a link from the overview.")

    def prepare(self, store: SqliteStore) -> None:
        """Read the work of the ops that have GPU times, because loading an op takes a second."""
        every = ((op, info) for op in store.count(EvaluationSummary, "op") for info in store.find(DeviceInfo, op))
        self.work.read((op, info) for op, info in every if policy_of(info.kind).times_are_gpu_times)

    def _comparison(self, store: Store, what: str, named: list[str]) -> Page:
        whole = [_whole(store, what, one) for one in named] if what in COMPARED_BY_ID else named
        if whole != named and all(whole):
            raise Moved("/".join(["compare", what, *whole]))
        if what == "kernels" and len(named) == 2 and (kernels := comparison.kernels_compared(store, *named)):
            return self.renderer.kernels_compared(kernels)
        if what == "runs" and len(named) == 2 and (runs := comparison.runs_compared(store, *named)):
            return self.renderer.runs_compared(runs)
        if what == "devices" and len(named) == 1 and (found := comparison.devices_compared(store, *named)):
            return self.renderer.devices_compared(found)
        raise Absent("Nothing to compare", "Give the ids of two kernels, or of two runs of one op on one device.")

    def _op(self, store: Store, op: str, device: str) -> Page:
        view = op_page(store, op, device)
        if view is None:
            where = f" on {device}" if device else ""
            raise Absent(f"No evaluations of {op}{where}", f"`evolve run {op}` makes some.")
        points = roofline(op, view.standing.device, view.standing.champions, self.work)
        return self.renderer.op(view, addresses.op_page(op, device), points)

    def _kernel(self, store: Store, kernel_id: str) -> Page | str:
        wanted, dot, ending = kernel_id.partition(".")
        if dot and ending == "cu":
            found = store.find(Kernel, ids=[wanted])
            if found:
                return found[0].text
        if view := kernel_page(store, wanted):
            return self.renderer.kernel(view)
        ids = [one.id for one in store.find(KernelSummary, prefix=wanted)] if wanted else []
        raise self._instead("kernel", wanted, ids, addresses.kernel_page)

    def _run(self, store: Store, run: str) -> Page:
        if view := run_page(store, run):
            return self.renderer.run(view)
        ids = [one.id for one in store.find(Run, prefix=run)] if run else []
        raise self._instead("run", run, ids, addresses.run_page)

    def _instead(self, what: str, given: str, ids: list[str], address: Callable[[str], str]) -> Exception:
        """Return the answer to an address with the first characters of an id: a redirection, or an explanation."""
        if len(ids) == 1:
            return Moved(address(ids[0]))
        if ids:
            return Absent(f"Several ids begin with {given}", f"Give more characters: {', '.join(ids[:CANDIDATES])}")
        return Absent(f"No {what} with an id that begins with {given}", "The archive does not have it.")


def _whole(store: Store, what: str, given: str) -> str:
    """Return the id that begins with these characters, or an empty string unless there is exactly one."""
    found = store.find(Run, prefix=given) if what == "runs" else store.find(KernelSummary, prefix=given)
    return found[0].id if given and len(found) == 1 else ""
