"""Rendering: views become HTML through templates that escape everything, with plots and highlighted code."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, TOMLLexer

from archive.characters import escaped
from archive.kernel import CLOSE, OPEN
from archive.records import Measurement
from evolve.pages import addresses, svg
from evolve.pages.addresses import Links, Without
from evolve.pages.comparison import DeviceComparison, KernelComparison, RunComparison, TimePair
from evolve.pages.kernel_page import KernelPage
from evolve.pages.op_page import AXES, OpPage
from evolve.pages.overview import OpLine, Overview
from evolve.pages.roofline import RooflinePoint
from evolve.pages.run_page import RunLine, RunPage
from evolve.pages.svg import Axis, Bar, BarGroup, Dot, Line, element
from evolve.report import words
from evolve.report.basis import Basis
from evolve.report.best_so_far import Moment
from evolve.report.differences import Side, side_by_side
from evolve.report.runs import UNITS, amount
from evolve.report.standing import Standing
from evolve.selection.population import Champion

OPS_DRAWN = 40  # largest number of ops in the plot of the overview
WORKLOADS_DRAWN = 16  # largest number of workloads in the plot of an op
KNOBS = "knobs"  # operator of the tuner
MOST_HIGHLIGHTED = 200_000  # number of characters above which a text is shown without colours
FORMAT = HtmlFormatter(nowrap=True, classprefix="h-")


@dataclass(frozen=True)
class Page:
    """A page's title and its content without the frame of a document."""

    address: str
    title: str
    body: Markup


@dataclass(frozen=True)
class Renderer:
    """Renders pages whose links are made by `links`."""

    links: Links

    def overview(self, view: Overview) -> Page:
        drawn = [line for line in view.on_gpus if line.speedups]
        drawn.sort(key=lambda line: -(line.mean or 0.0))
        apart = models({line.device.name for line in view.on_gpus})
        return self._page(
            addresses.OVERVIEW, "Overview", "overview.html", view=view, models=apart,
            gains=self._gains(drawn[:OPS_DRAWN], apart), left_out=max(0, len(drawn) - OPS_DRAWN),
        )  # fmt: skip

    def op(self, view: OpPage, address: str, roofline: Sequence[RooflinePoint] = (), held: str = "") -> Page:
        """Return an op's page. `held` says which kernels and runs have a page, if not all have one."""
        now = view.standing
        return self._page(
            address, f"{now.op} on {now.device.name}", "op.html", link=Without(self.links, view.absent), view=view,
            now=now, knobs=KNOBS, held=held,
            labels=words.workload_labels([champion.workload for champion in now.champions]),
            bars=_champion_bars(now), curves=[self._curve(view, axis) for axis in range(len(AXES))],
            roofline=_roofline(now, roofline), tuned=any(one.measurement.autotune_us for one in now.champions),
        )  # fmt: skip

    def kernel(self, view: KernelPage) -> Page:
        title = f"{words.short(view.kernel.id)}, a kernel of {view.kernel.op}"
        diffs = [(one, difference(one.text, view.kernel.text, (words.short(one.id), words.short(view.kernel.id))))
                 for one in view.parents]  # fmt: skip
        return self._page(
            addresses.kernel_page(view.kernel.id), title, "kernel.html", link=Without(self.links, view.absent),
            view=view, diffs=diffs, source=source(view.kernel.text), labels_of=_labels_of,
        )  # fmt: skip

    def run(self, view: RunPage) -> Page:
        axes = Axis("evaluations of the run", amount), Axis(_ratio_to(view.basis), words.times, log=True)
        points = [(float(one.spent.evals), one.best) for one in view.qualities]
        best = svg.plot(f"Best ratio so far in run {view.run.id}", axes, [Line(view.run.id, points)])
        return self._page(addresses.run_page(view.run.id), f"Run {view.run.id}", "run.html", view=view, best=best)

    def runs(self, lines: Sequence[RunLine]) -> Page:
        return self._page(addresses.RUNS, "Runs", "runs.html", lines=lines)

    def kernels_compared(self, view: KernelComparison) -> Page:
        a, b = words.short(view.a.id), words.short(view.b.id)
        return self._page(
            addresses.kernels_compared(view.a.id, view.b.id), f"{a} and {b}", "compare_kernels.html", view=view,
            difference=difference(view.a.text, view.b.text, (a, b)), labels_of=_labels_of,
        )  # fmt: skip

    def runs_compared(self, view: RunComparison) -> Page:
        a, b = (side.run.id for side in view.sides)
        return self._page(
            addresses.runs_compared(a, b), f"Runs {words.short(a)} and {words.short(b)}", "compare_runs.html",
            view=view, names=svg.legend([words.short(a), words.short(b)]),
            curves=[_qualities(view, axis) for axis in ("evals", "tokens", "usd")],
        )  # fmt: skip

    def devices_compared(self, view: DeviceComparison) -> Page:
        return self._page(
            addresses.devices_compared(view.op), f"{view.op} by device", "compare_devices.html", view=view,
            labels=words.workload_labels(view.workloads),
        )  # fmt: skip

    def absent(self, title: str, message: str) -> Page:
        return self._page(addresses.OVERVIEW, title, "absent.html", heading=title, message=message)

    def _page(self, address: str, title: str, template: str, **values: Any) -> Page:
        drawn = _templates().get_template(template).render({"link": self.links, "to": addresses, **values})
        return Page(address, title, Markup(drawn))  # noqa: S704 - the templates escape what they are given

    def _gains(self, lines: Sequence[OpLine], models: Mapping[str, str]) -> Markup:
        rows = [
            (
                f"{line.op}, {models[line.device.name]}" if len(models) > 1 else line.op,
                self.links(addresses.op_page(line.op, line.device.key)),
                [
                    Dot(one.timing.speedup, 0.0, f"{one.workload}: {words.times(one.timing.speedup)}",
                        kind="" if one.confirmed else "unsure")
                    for one in line.champions
                ],
            )
            for line in lines
        ]  # fmt: skip
        axis = Axis("speedup over the best of PyTorch, with a dot per workload", words.times, log=True)
        return svg.ranges("Speedups of the champions by op", axis, rows) if rows else Markup("")

    def _curve(self, view: OpPage, axis: int) -> Markup:
        """Return the plot of all kernels that passed, and the best so far, over the cost."""
        if len(view.moments) < 2 or not view.spent[axis]:
            return Markup("")
        best = [(one.spent[axis], one.best) for one in _turns(view.moments)]
        best.append((view.spent[axis], best[-1][1]))
        shown = view.moments if axis == 0 else ()
        dots = [Dot(one.spent[axis], one.ratio, f"{words.short(one.kernel_id)}: {words.times(one.ratio)}",
                    self.links(addresses.kernel_page(one.kernel_id))) for one in shown]  # fmt: skip
        return svg.plot(
            f"Kernels of {view.standing.op} and the best so far, over {AXES[axis]}",
            (
                Axis(f"{AXES[axis]} spent on the op", _dollars if AXES[axis] == "dollars" else amount),
                Axis(f"{_ratio_to(view.standing.basis)}, mean over workloads", words.times, log=True),
            ),
            [Line("best so far", best)],
            dots,
        )  # fmt: skip


def _qualities(view: RunComparison, axis: str) -> Markup:
    """Return a plot of the best ratio of both runs by cost; empty if neither run has this cost."""
    lines = [
        Line(side.run.id, [(float(getattr(one.spent, axis)), one.best) for one in side.qualities])
        for side in view.sides
    ]
    if not any(x for line in lines for x, _ in line.points):
        return Markup("")
    title = f"best so far over {UNITS[axis]}"
    across = Axis(UNITS[axis], _dollars if axis == "usd" else amount)
    return svg.plot(title, (across, Axis(_ratio_to(view.basis), words.times, log=True)), lines)


def _ratio_to(basis: Basis) -> str:
    return "speedup over the best of PyTorch" if basis.is_pytorch else "ratio to the first kernel"


def _device(name: str) -> str:
    """Return the name of a device without its maker, which is the same for all GPUs here."""
    return name.removeprefix("NVIDIA ")


def models(names: Iterable[str]) -> dict[str, str]:
    """Return the first words of each name that distinguish these devices, such as H100."""
    words_of = {name: _device(name).split() for name in names}
    most = max(map(len, words_of.values()), default=0)
    for number in range(1, most):
        shortened = {name: " ".join(some[:number]) for name, some in words_of.items()}
        if len(set(shortened.values())) == len(shortened):
            return shortened
    return {name: _device(name) for name in words_of}


def _dollars(usd: float) -> str:
    return f"${usd:g}"


def _turns(moments: Sequence[Moment]) -> list[Moment]:
    """Return the first moment, and the moments at which the best so far rose."""
    before = (None, *moments)
    return [one for one, last in zip(moments, before, strict=False) if last is None or one.best > last.best]


def _champion_bars(now: Standing) -> Markup:
    """Return the champions' times beside PyTorch's and the speed of light, or nothing without GPU times."""
    if not now.basis.is_pytorch or not now.champions:
        return Markup("")
    labels = words.workload_labels([one.workload for one in now.champions]).of
    groups = [BarGroup(labels[one.workload], _bars(one), one.measurement.floor_us)
              for one in now.champions[:WORKLOADS_DRAWN]]  # fmt: skip
    return svg.bars(f"Times of {now.op} by workload: the champion and PyTorch", groups)


def _bars(champion: Champion) -> list[Bar]:
    m = champion.measurement
    times = (("kernel", m.median_us), ("eager", m.eager_us), ("compile", m.compile_us), ("autotune", m.autotune_us))
    return [Bar(us, f"{words.figure(us)} µs {name}", f"b-{name}") for name, us in times if us]


def _roofline(now: Standing, points: Sequence[RooflinePoint]) -> Markup:
    if not points:
        return Markup("")
    dots = [Dot(one.intensity, one.achieved, f"{one.workload}: {one.achieved:.3g} TFLOP/s, {words.percent(one.share)} "
                f"of what is possible") for one in points]  # fmt: skip
    ends = (min(one.intensity for one in points) / 4, max(one.intensity for one in points) * 4)
    roofs: dict[str, RooflinePoint] = {one.unit: one for one in points}
    lines = [Line(unit, _roof(one, ends)) for unit, one in roofs.items()]
    drawn = svg.plot(
        f"Roofline of {now.op}",
        (
            Axis("floating-point operations per byte", lambda value: f"{value:.3g}", log=True),
            Axis("TFLOP/s", lambda value: f"{value:.3g}", log=True),
        ),
        dots=dots,
        lines=lines,
    )
    return Markup("{}{}").format(drawn, svg.legend([f"roof for {unit}" for unit in roofs]))


def _roof(one: RooflinePoint, ends: tuple[float, float]) -> list[tuple[float, float]]:
    ridge = one.peak / one.bandwidth
    low, high = ends
    middle = [(ridge, one.peak)] if low < ridge < high else []
    return [(low, min(one.peak, low * one.bandwidth)), *middle, (high, min(one.peak, high * one.bandwidth))]


def _labels_of(timed: Sequence[Measurement | TimePair]) -> words.WorkloadLabels:
    return words.workload_labels([one.workload for one in timed])


def _visible(value: object) -> object:
    """Write out control characters and those that change the text direction, except in finished HTML."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else escaped(value)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("evolve.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        short=words.short, figure=words.figure, times=words.times, percent=words.percent, clock=words.clock,
        moment=words.moment, dollars=words.dollars, counted=words.counted, amount=amount, one_line=words.one_line,
        plain=plain, device=_device,
    )  # fmt: skip
    return environment


def document(page: Page, *, style: Markup, script: Markup, live: bool, policy: str = "") -> str:
    """Return a whole document with one page, or with several in `page.body`."""
    template = _templates().get_template("document.html")
    return template.render(page=page, style=style, script=script, live=live, policy=policy)


def static(name: str) -> str:
    """Return a static file that pages need."""
    return (resources.files("evolve.pages") / "static" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=256)
def kernel_lines(text: str) -> tuple[Markup, ...]:
    """Return a kernel's lines with its plan highlighted as TOML and its source as CUDA."""
    shown = escaped(text.rstrip("\n"))
    begin, end = shown.find(OPEN), shown.find(f"\n{CLOSE}")
    if len(shown) > MOST_HIGHLIGHTED:
        return tuple(element("span", line) for line in shown.split("\n"))
    if begin != 0 or end < 0:
        return _lines(shown, CudaLexer(stripnl=False, ensurenl=False))
    first, *plan = shown[:end].split("\n")
    close, *source = shown[end + 1 :].split("\n")
    opened, closed = (element("span", line, class_="h-c") for line in (first, close))
    toml = _lines("\n".join(plan), TOMLLexer(stripnl=False, ensurenl=False))
    return opened, *toml, closed, *_lines("\n".join(source), CudaLexer(stripnl=False, ensurenl=False))


def _lines(text: str, lexer: Lexer) -> tuple[Markup, ...]:
    """Return highlighted lines. The formatter closes its elements at the end of each line."""
    found = highlight(text, lexer, FORMAT).removesuffix("\n").split("\n")
    plain = text.split("\n")
    if len(found) != len(plain):
        return tuple(element("span", line) for line in plain)
    return tuple(Markup(line) for line in found)  # noqa: S704 - Pygments has escaped it


def source(text: str) -> Markup:
    """Return a kernel with numbered lines; the numbers are drawn by the style sheet, so that they are not copied."""
    lines = (element("span", line, class_="line") + "\n" for line in kernel_lines(text))
    return element("pre", element("code", *lines), class_="source", tabindex="0")


def plain(text: str, label: str) -> Markup:
    """Return text in a box that scrolls, with control characters written out."""
    return element("pre", text.rstrip("\n"), class_="text", tabindex="0", role="region", aria_label=label)


def difference(left: str, right: str, names: tuple[str, str]) -> Markup:
    """Return a table with two texts side by side, without common lines that are far from any change."""
    groups = side_by_side(left, right)
    if not groups:
        return element("p", "The texts are equal.", class_="dim")
    head = element("tr", *(element("th", name, colspan=2, scope="colgroup") for name in names))
    bodies = [
        element("tbody", *(element("tr", *_cells(pair.left, "del" if pair.changed else ""),
                                   *_cells(pair.right, "ins" if pair.changed else "")) for pair in group))
        for group in groups
    ]  # fmt: skip
    columns = Markup("<colgroup>{0}{0}</colgroup>").format(Markup('<col class="at"><col>'))
    return element("table", columns, element("thead", head), *bodies, class_="diff")


def _cells(side: Side, kind: str) -> tuple[Markup, Markup]:
    tag = {"del": "del", "ins": "ins"}.get(kind, "span")
    if not side.number:
        return element("td", class_="number"), element("td", class_="none")
    parts = (
        element(tag, part.text) if part.changed and len(side.parts) > 1 else element("span", part.text)
        for part in side.parts
    )
    return element("td", side.number, class_="number"), element("td", *parts, class_=kind)
