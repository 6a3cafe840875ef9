"""A session: one or several runs under one budget, from their setup until their searches can start."""

import contextlib
import os
import secrets
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from archive import library, seeds
from archive.claims import Claims
from archive.kernel import Kernel, Proposal
from archive.records import DeviceInfo
from archive.runs import EVOLVE, Budget, Run, Scope
from archive.store import Store
from evolve import budget, wiring
from evolve.budget import Ended, Spent
from evolve.cli import options, signals
from evolve.cli.options import HERE, OFFLINE, RAY, TOKENS, USD, Machines, RunOptions
from evolve.cli.setups import Setup, check_strategy
from evolve.devices import choose
from evolve.devices.choose import COMPILE, policy_of
from evolve.engines.engine import Engine, LoadsOps, PreparesBaselines, devices_of, on_device
from evolve.engines.replayed import RecordedVerdicts, seen_by
from evolve.errors import UserError
from evolve.op_on_device import accepts_any
from evolve.report.words import listed, say, short, times_label, typed
from evolve.request import Proposer
from evolve.search import GENERATION, Search, generation
from evolve.selection.sharing import Share
from reference_ops.op import Op

if TYPE_CHECKING:
    from archive.sqlite import SqliteStore
    from evolve.report.progress import Phases

E = TypeVar("E")


@dataclass(frozen=True)
class Backends:
    """The proposer, the engine and the archive of a session."""

    proposer: Proposer
    engine: Engine
    store: "SqliteStore"
    phases: "Phases"
    claims: Claims | None = None  # claims on kernels of the archive; None if no other process uses the archive

    def device(self, search: Search) -> DeviceInfo:
        """Return the device for which a search evolves kernels."""
        return on_device(self.engine, search.device).info


@dataclass(frozen=True)
class Session:
    """One or several runs under one budget, ready to start or to resume."""

    backends: Backends
    id: str  # id of the run or campaign
    searches: tuple[Search, ...]
    budget: Budget  # the total budget
    before: Spent  # the part of the budget that earlier legs spent
    seeds: tuple[Proposal, ...]  # shipped kernels to start from
    command: tuple[str, ...]  # the command that resumes the session, without --resume and limits
    given: Budget = field(default=Budget())  # limits given when the session was resumed
    replay: str = ""  # id of the run that is replayed

    @cached_property
    def working(self) -> tuple[Engine, Store]:
        """Return the engine and the store for the search; for a replay, those of the recorded run."""
        engine, store = self.backends.engine, self.backends.store
        if not self.replay:
            return engine, store
        (run,) = store.find(Run, ids=[self.replay])
        return RecordedVerdicts(engine, run, store), seen_by(run, store, engine.info)

    def resume_command(self, more: Budget | None = None) -> str:
        """Return the command that resumes this session, with the larger limits in `more`, if any."""
        # a replay starts from the beginning, which takes little time because recorded verdicts are repeated
        if self.replay:
            return typed(*self.command, "--replay", self.replay)
        limits = options.with_limits(self.given, more or Budget())
        return typed(*self.command, "--resume", self.id, *options.budget_arguments(limits))

    def spent(self) -> Spent:
        """Return the total over all runs and legs so far."""
        return sum((spent_by(search, self.backends) for search in self.searches), Spent())


@dataclass(frozen=True)
class RunResult:
    """The outcome of a session as plain values for --json, and whether any kernel is a champion."""

    facts: dict[str, Any]
    found: bool


class RunEvents(Generic[E]):
    """The events of a run, with the reason why it ended once they are consumed. close() ends the leg early."""

    def __init__(self, events: Generator[E, None, Ended]) -> None:
        self._events = events
        self.ended: Ended | None = None

    def __iter__(self) -> Iterator[E]:
        self.ended = yield from self._events

    def close(self) -> None:
        self._events.close()


def opened(setup: Setup, loaded: Sequence[tuple[Op, str]], backends: Backends, command: Sequence[str]) -> Session:
    """Return a session for the loaded ops. New runs are archived; resumed runs get the rest of their budget."""
    check_strategy(setup.run_options.strategy)
    total = options.with_default_time(setup.budget, backends.proposer.name)
    known = {device.key: device for device in devices_of(backends.engine)}
    kind = backends.engine.info.kind
    if setup.run_options.replay and len(known) > 1:
        raise UserError("a replay repeats the run of one device", "name one type of GPU with --gpus")
    if total.until_light and not policy_of(kind).times_are_gpu_times:
        raise UserError(f"the {kind} device has no speed of light", "leave out --until-sol, or run on a GPU")
    if setup.runs:
        _check_ops(setup, [op.name for op, _ in loaded])
    runs = list(setup.runs) or _started(setup, loaded, backends, total)
    _check_devices(runs, known)
    found = {op.name: (op, locator) for op, locator in loaded}
    identity = runs[0].campaign or runs[0].id
    with_model = backends.proposer.name != OFFLINE
    claims = None if setup.run_options.replay else backends.claims  # a replay repeats verdicts that are known
    wanted = {key: generation(on_device(backends.engine, key)) for key in known}
    searches = [
        Search(run.id, *found[run.op], run.seed, total, scope=_scope(run, found[run.op][0], setup.run_options),
               profiled=with_model, share=Share(claims, backends.phases.wait),
               generation=GENERATION if setup.run_options.replay else wanted[run.device],
               device=run.device if len(known) > 1 else "")
        for run in runs
    ]  # fmt: skip
    before = sum((spent_by(search, backends) for search in searches), Spent()) if setup.runs else Spent()
    left = budget.left(total, before)
    given = setup.run_options
    start = (
        () if given.no_seeds or given.fresh else tuple(_seeds([op for op, _ in loaded], kind, plain=given.no_champions))
    )
    deadline = float("inf") if left.seconds is None else time.monotonic() + left.seconds
    searches = [replace(search, budget=left, deadline=deadline) for search in searches]
    return Session(backends, identity, tuple(searches), total, before, start, tuple(command), setup.given, given.replay)


def _scope(run: Run, op: Op, given: RunOptions) -> Scope:
    """Return the scope of a run. It excludes shipped kernels from which the run does not start."""
    kept = {kernel.id for kernel in _shipped(op, plain=True)} if given.no_champions and not given.no_seeds else set()
    left_out = _shipped(op, knobs=True) if given.no_seeds or given.no_champions else []
    return Scope(
        run.id, run.strategy, given.fresh, frozenset(kernel.id for kernel in left_out if kernel.id not in kept)
    )


def _seeds(ops: Sequence[Op], device: str, *, plain: bool) -> Iterator[Proposal]:
    """Yield the shipped kernels that the device supports, as proposals whose ids are the same in every run.

    Kernels that accept none of the device's workloads are left out. On a GPU, knob settings that have won on another
    GPU are included.
    """
    for op in ops:
        for kernel in _shipped(op, plain=plain, knobs=policy_of(device).times_are_gpu_times):
            if choose.supports(device, kernel) and accepts_any(kernel, op, device):
                yield seeds.proposal(kernel, time.time())


def prepare_baselines(engine: Engine, loaded: Sequence[tuple[Op, str]], *, at_once: bool) -> None:
    """Let the engine compile the baselines ahead that have no times on this device, in the order of the ops."""
    if not isinstance(engine, PreparesBaselines) or COMPILE not in policy_of(engine.info.kind).baselines:
        return
    from evolve.evaluation import baselines

    cache, info = baselines.cache(), engine.info
    for op, locator in loaded:
        if unknown := [one.key for one in op.workloads(info.kind) if not cache.find(op, one, info)]:
            engine.prepare(locator, unknown, at_once=at_once)


def load_ahead(engine: Engine, loaded: Sequence[tuple[Op, str]]) -> None:
    """Let the engine's workers load the first op that a file defines; ops of the catalog are loaded quickly."""
    if isinstance(engine, LoadsOps):
        for locator in [locator for op, locator in loaded if op.standalone][:1]:
            engine.load(locator)


def import_catalog() -> None:
    """Import what `look_for_seeds` needs."""
    from evolve.proposers import adapted

    adapted.import_catalog()


def look_for_seeds(ops: Sequence[Op]) -> None:
    """Find the catalog's ops that compute the same as these, so that opening the session need not wait for that."""
    from evolve.proposers import adapted

    for op in ops:
        if op.standalone:
            adapted.find_equivalents(op)


def _shipped(op: Op, *, plain: bool = False, knobs: bool = False) -> list[Kernel]:
    """Return the shipped kernels of an op, or only its plain one; `knobs` adds those with other knobs.

    A task or function that computes the same as an op of the catalog gets the kernels of that op, adapted.
    """
    from evolve.proposers import adapted

    if op.standalone:
        return list(adapted.kernels_for(op, plain=plain))
    if plain:
        return library.plain(op.name)
    return seeds.kernels(op.name) if knobs else library.shipped(op.name)


def spent_by(search: Search, backends: Backends) -> Spent:
    """Return the cost of the search's run in all its legs."""
    return budget.spent(search.run, budget.history(backends.store, search.op.name, backends.device(search).key))


def _check_ops(setup: Setup, names: Sequence[str]) -> None:
    """Raise an error if a file no longer defines the op of its runs."""
    of_file = dict(zip(setup.locators, setup.runs, strict=True))  # runs for several devices have the same file
    for index, (locator, run) in enumerate(of_file.items()):
        if names[index : index + 1] != [run.op]:
            raise UserError(
                f"{locator} no longer defines {run.op}, the op of run {run.id}", "start a new run without --resume"
            )


def _check_devices(runs: Sequence[Run], known: Collection[str]) -> None:
    for run in runs:
        if run.device not in known:
            raise UserError(
                f"run {run.id} was started on {run.device}, but this device is {' and '.join(known)}",
                "resume it on its own device, or start a new run without --resume",
            )


def _started(setup: Setup, loaded: Sequence[tuple[Op, str]], backends: Backends, total: Budget) -> list[Run]:
    """Archive and return a new run per op and device."""
    campaign = secrets.token_hex(4) if len(loaded) * len(devices_of(backends.engine)) > 1 else ""
    given = setup.run_options
    runs = [
        Run(
            secrets.token_hex(4), op.name, device.key, backends.proposer.name, given.seed or 0,
            time.time(), given.strategy or EVOLVE, total, campaign, (locator, *given.arguments()),
        )
        for op, locator in loaded for device in devices_of(backends.engine)
    ]  # fmt: skip
    backends.store.append(*runs)
    return runs


@contextlib.contextmanager
def engine_on(requested: str, phases: "Phases", output: Console, machines: Machines = HERE) -> Iterator[Engine]:
    """Yield an engine whose device is ready. The engine is closed on exit, also after an error."""
    with starting_engine(requested, phases, output, machines) as engine:
        wait_for_device(engine, requested, output)
        yield engine


@contextlib.contextmanager
def starting_engine(requested: str, phases: "Phases", output: Console, machines: Machines = HERE) -> Iterator[Engine]:
    """Yield an engine that is still starting, so that the caller can load ops meanwhile. It is closed on exit."""
    engine: Engine
    with output.status("looking for a GPU"):
        if machines.engine == RAY:
            engine = wiring.ray_engine(requested, phases.watch, machines.address, machines.gpus)
        else:
            engine = wiring.engine(choose.device_kind(requested), phases.watch, machines.gpus)
    try:
        yield engine
    finally:
        engine.close()


def wait_for_device(engine: "Engine", requested: str, output: Console) -> None:
    """Wait until the engine's devices are ready, and print their names."""
    with output.status("starting the workers"):
        signals.check()
        found = devices_of(engine)
        signals.check()
    for info in found:
        if label := times_label(info.kind):
            running = f"running on the {info.kind} device"
            running = f"{running}, as requested" if requested else f"no GPU found: {running}"
            output.print(f"device    {running}. Its times are {label}.", style="yellow")
        else:
            output.print(f"device    {info.name} ({info.arch}, {info.sms} multiprocessors)")


def print_waits(phases: "Phases", output: Console) -> None:
    """From now on, print each reason to wait once, and each kernel that waits for its baselines."""
    printed = set[str]()

    def shown(reason: str) -> None:
        if reason not in printed:
            printed.add(reason)
            say(output, reason, begin="waiting: ")

    phases.on_wait = shown
    phases.found = lambda kernel_id, phase: say(output, f"{short(kernel_id)} {phase}")


def print_proposer(name: str, budget: Budget, output: Console) -> None:
    """Print the proposer, and any limits that cannot be reached because no model is used."""
    if name != OFFLINE:
        output.print(f"proposer  {name}")
        return
    configured = os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")
    why = "" if configured else "no OPENAI_API_KEY or OPENAI_BASE_URL: "
    say(output, f"{why}the offline proposer varies the knobs of known kernels", begin="proposer  ")
    if unused := [option for option, limit in ((TOKENS, budget.tokens), (USD, budget.usd)) if limit is not None]:
        output.print(f"budget    no model is asked, so {listed(unused)} cannot end the run", style="yellow")
