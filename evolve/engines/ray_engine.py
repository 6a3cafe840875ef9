"""Ray engine: evaluates on the nodes of a Ray cluster. Each actor holds one GPU, or some CPUs where there are no GPUs.

An actor that is lost, alone or with its node, is replaced as soon as the cluster has room, and other actors repeat its
jobs. Verdicts that it sent before the loss count, and later verdicts are ignored: nothing is lost or counted twice.
"""

import contextlib
import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome, Profile
from evolve.devices import choose
from evolve.engines.cluster import AUTO, allocation_of, connect, default_device, sentence
from evolve.engines.engine import Job, TakesPauses
from evolve.engines.messages import WAITING, Assignment, Done, Message, Ready, decode, encode
from evolve.engines.station import Hello, RemoteJob, Station, StationFault, Watch, own_versions
from evolve.errors import UserError
from evolve.evaluation.requests import ProfileRequest, ProfileResult, TimingRequest, TimingResult
from reference_ops import catalog

TICK_SECONDS, CLOSE_SECONDS = 0.2, 25.0
GROWTH_SECONDS = 10.0  # interval between two searches for new nodes
START_SECONDS = 300.0  # longest time without any actor
START_ATTEMPTS = 10  # number of actors in a row that are lost while they start, with no actor ready
# number of losses after which a job is evaluated alone on an actor; after as many more, its kernel is at fault
MOST_LOSSES = 3
CALLS_AT_ONCE = 8  # number of an actor's methods that may run at the same time

LACKING = re.compile(r"No module named '[^']+'")  # part of Ray's message about an actor that could not be created

Make = Callable[[str, Watch, int], tuple[TakesPauses, int]]


@dataclass(eq=False)
class _Ticket:
    """A job, and the number of times that it was lost with an actor."""

    number: int
    job: Job
    losses: int = 0


@dataclass(eq=False)
class _Slot:
    """An actor, the call whose answer is awaited, and the jobs that it was given."""

    actor: Any
    asked: Any
    hello: Hello | None = None
    tickets: dict[int, _Ticket] = field(default_factory=dict)
    alone: bool = False  # the actor has a job that is evaluated alone

    @property
    def free(self) -> int:
        return self.hello.depth - len(self.tickets) if self.hello and not self.alone else 0


class RayEngine:
    """Engine on a cluster. The actor that was ready first also confirms champions, profiles kernels and times PyTorch.

    Without a `kind`, the device is a GPU if the cluster has one, otherwise the emulated device. `gpu_type` is a name
    that Ray gives to GPUs, such as H100; it may be empty in a cluster with GPUs of one type. `make` is called in each
    actor, with the kind of the device, a watch and a number of cores. It returns an engine, and the number of jobs that
    keep the engine busy.
    """

    def __init__(
        self, kind: str, make: Make, watch: Watch | None = None, address: str = AUTO, gpu_type: str = ""
    ) -> None:
        self._ray, self._owns_connection = connect(address)
        self._kind, self._make, self._gpu_type = kind or default_device(self._ray.nodes()), make, gpu_type
        self._watch = watch or (lambda _subject, _phase: None)
        self._slots: list[_Slot] = []
        self._first: _Slot | None = None
        self._info: DeviceInfo | None = None
        self._versions = own_versions()
        self._torch: Hello | None = None  # the first station, whose version of PyTorch the others must have
        self._waiting, self._faults = deque[_Ticket](), deque[StationFault]()
        self._numbers = itertools.count()
        self._lost_starts, self._none_since, self._looked = 0, time.monotonic(), 0.0
        self._unprofiled, self._closed = "", False
        try:
            choose.check_kind(self._kind)
            self._allocation = allocation_of(self._ray.nodes(), self._kind, gpu_type)
        except UserError:
            self.close()
            raise
        self._keep_up()

    @property
    def info(self) -> DeviceInfo:
        """The device, with the rates that the first actor has measured, once an actor is ready."""
        while self._info is None:
            self._step()
        return self._info

    @property
    def cards(self) -> int:
        """The current number of actors."""
        return len(self._slots)

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        self._forget_unfinished()
        _, incoming, ended = self.info, iter(jobs), False
        verdicts: list[Evaluation] = []
        while True:
            try:
                # Jobs are distributed before verdicts are yielded, so that the actors stay busy while the caller
                # handles the verdicts.
                ended = self._fill(iter(()) if ended else incoming)
            finally:
                yield from verdicts
            if ended and not self._waiting and not any(slot.tickets for slot in self._slots):
                return
            verdicts = self._step()

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        answer = self._ask(ProfileRequest(kernel.text, op, workload))
        assert isinstance(answer, ProfileResult)  # noqa: S101
        self._unprofiled = answer.fault
        return answer.profile

    @property
    def unprofiled(self) -> str:
        return self._unprofiled

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        answer = self._ask(request)
        assert isinstance(answer, TimingResult)  # noqa: S101
        return answer

    def close(self) -> None:
        """End the actors, which end their workers. If Ray no longer answers, the actors end with this process."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            closing = [slot.actor.close.remote() for slot in self._slots if slot.hello]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for slot in self._slots:
            self._kill(slot)
        self._slots = []
        if self._owns_connection:
            self._ray.shutdown()

    def _forget_unfinished(self) -> None:
        """Forget the jobs of an abandoned `evaluate`. Actors still finish them; the verdicts are ignored."""
        self._waiting.clear()
        self._faults.clear()
        for slot in self._slots:
            slot.tickets, slot.alone = {}, False

    def _fill(self, incoming: Iterator[Job | None]) -> bool:
        """Give jobs to the actors that have the fewest; return whether no jobs are left."""
        chosen: dict[_Slot, list[_Ticket]] = {}
        ended = False
        while any(slot.free > 0 for slot in self._slots):
            if not self._waiting:
                job = next(incoming, self)  # `self` if there are no more jobs
                if job is self or job is None:
                    ended = job is self
                    break
                self._waiting.append(_Ticket(next(self._numbers), job))  # type: ignore[arg-type]
            if not (slot := self._slot_for(self._waiting[0])):
                break
            ticket = self._waiting.popleft()
            slot.tickets[ticket.number] = ticket
            slot.alone = ticket.losses >= MOST_LOSSES
            chosen.setdefault(slot, []).append(ticket)
        for slot, tickets in chosen.items():
            slot.actor.submit.remote([_remote_job(ticket) for ticket in tickets])
            for ticket in tickets:
                self._watch(ticket.job.kernel.id, WAITING)
        return ended

    def _slot_for(self, ticket: _Ticket) -> _Slot | None:
        """Return the least busy actor that may get a job.

        A confirmation needs the first actor. A job that was lost several times needs an idle actor.
        """
        slots = [slot for slot in self._slots if slot.free > 0]
        if ticket.job.confirm and self._first:
            slots = [slot for slot in slots if slot is self._first]
        if ticket.losses >= MOST_LOSSES:
            slots = [slot for slot in slots if not slot.tickets]
        return max(slots, key=lambda slot: slot.free, default=None)

    def _step(self) -> list[Evaluation]:
        """Wait briefly for the actors, and return the verdicts that have arrived or follow from losses."""
        if time.monotonic() - self._looked > GROWTH_SECONDS:
            self._keep_up()
        asked = {slot.asked: slot for slot in self._slots}
        if not asked:
            time.sleep(TICK_SECONDS)
        ready = self._ray.wait(list(asked), num_returns=1, timeout=TICK_SECONDS)[0] if asked else []
        if ready:
            ready = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)[0]
        if self._faults:
            raise located(self._faults.popleft())
        verdicts: list[Evaluation] = []
        for reference in ready:  # handle all events before a fault is raised, so that no verdict is lost
            verdicts += self._hear(asked[reference])
        self._check_alive()
        return verdicts

    def _hear(self, slot: _Slot) -> Iterator[Evaluation]:
        from ray.exceptions import RayError, RayTaskError

        try:
            answer = self._ray.get(slot.asked)
        except RayTaskError:  # an error in the station's own code
            raise
        except RayError as error:
            yield from self._lost(slot, str(error))
            return
        if isinstance(answer, StationFault):
            self._faults.append(answer)
            return
        slot.asked = slot.actor.events.remote()
        if isinstance(answer, Hello):
            self._ready(slot, answer)
            return
        for subject, phase in answer.phases.items():
            self._watch(subject, phase)
        self._faults += answer.faults
        for number, line in answer.verdicts:
            if ticket := slot.tickets.pop(number, None):
                slot.alone = False
                yield _unique(ticket.job, _evaluation(line))

    def _ready(self, slot: _Slot, hello: Hello) -> None:
        """Let an actor take part. Raises UserError unless its device and versions equal those of the first actor."""
        ready = decode(hello.device)
        assert isinstance(ready, Ready)  # noqa: S101
        assert ready.device  # noqa: S101 - an evaluator holds one
        self._torch = self._torch or hello
        if hello.versions.torch != self._torch.versions.torch:
            versions = f"{self._torch.host} has PyTorch {self._torch.versions.torch} and {hello.host} has "
            raise UserError(f"{versions}{hello.versions.torch}", "install the same version on all machines")
        if self._info and self._info.key != ready.device.key:
            message = f"{hello.host} has {ready.device.name}, and other nodes have {self._info.name}"
            raise UserError(f"{message}: their times cannot be compared", "name one type of GPU with --gpus")
        self._info, self._lost_starts, slot.hello = self._info or ready.device, 0, hello
        self._first = self._first or slot

    def _lost(self, slot: _Slot, reason: str) -> Iterator[Evaluation]:
        """Replace an actor that has died or cannot be reached, and queue its jobs again."""
        self._kill(slot)
        self._slots.remove(slot)
        if not slot.hello:
            self._lost_starts += 1
            if missing := LACKING.search(reason):
                raise UserError(
                    f"a node of the cluster cannot start an actor: {missing.group()}",
                    "install evolve-kernels with the same extras on all nodes, for the Python that Ray runs there",
                )
            if self._lost_starts >= START_ATTEMPTS and not any(other.hello for other in self._slots):
                raise UserError(f"no actor of the cluster could start: {sentence(reason)}", "see `ray status`")
        if slot is self._first:
            self._first = next((other for other in self._slots if other.hello), None)
        for ticket in reversed(slot.tickets.values()):
            ticket.losses += 1
            if ticket.losses >= 2 * MOST_LOSSES:  # the job was alone on its actor for half of the losses
                yield self._blamed(ticket, reason)
            else:
                self._waiting.appendleft(ticket)
        self._start_actors()

    def _blamed(self, ticket: _Ticket, reason: str) -> Evaluation:
        kernel = ticket.job.kernel
        log = (
            f"{ticket.losses} actors were lost with it, the last {MOST_LOSSES} while it was their only kernel: "
            f"{sentence(reason)}"
        )
        return Evaluation(kernel.id, kernel.op, self.info, Outcome.CRASHED, log, created=time.time())

    def _check_alive(self) -> None:
        """Raise UserError if no actor has been ready for a long time."""
        if any(slot.hello for slot in self._slots):
            self._none_since = time.monotonic()
        elif time.monotonic() - self._none_since > START_SECONDS:
            raise UserError(
                f"no node of the cluster has had room for an actor for {START_SECONDS:g} s",
                "see `ray status`: nodes may be lost, or busy with other jobs",
            )

    def _keep_up(self) -> None:
        """Start actors for new nodes. Actors of lost nodes wait for room, which Ray's autoscaler notices."""
        self._looked = time.monotonic()
        if all(slot.hello for slot in self._slots):  # otherwise the new nodes replace the lost ones
            with contextlib.suppress(UserError):  # the cluster has no GPU now, but lost nodes may come back
                count = allocation_of(self._ray.nodes(), self._kind, self._gpu_type).count
                self._allocation = replace(self._allocation, count=max(self._allocation.count, count))
        self._start_actors()

    def _start_actors(self) -> None:
        station = self._ray.remote(Station)
        while len(self._slots) < self._allocation.count:
            # A method that was lost is never called again by Ray itself: this engine decides which jobs are repeated.
            options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": CALLS_AT_ONCE, "num_cpus": 1}
            actor = station.options(**{**options, **self._allocation.options}).remote(
                partial(on_node, self._make, self._kind)
            )
            self._slots.append(_Slot(actor, actor.start.remote(self._versions)))

    def _kill(self, slot: _Slot) -> None:
        with contextlib.suppress(Exception):  # the actor may be dead already
            self._ray.kill(slot.actor, no_restart=True)

    def _ask(self, request: ProfileRequest | TimingRequest) -> Message:
        """Return the first actor's answer; if the actor is lost, that of its successor."""
        from ray.exceptions import RayError, RayTaskError

        while True:
            _, first = self.info, self._first
            if first:
                reference = first.actor.ask.remote(encode(request))
                while not self._ray.wait([reference], timeout=0)[0] and first is self._first:
                    self._step()
                try:
                    answer = self._ray.get(reference)
                except RayTaskError:
                    raise
                except RayError:  # `_step` notices that the actor is lost
                    answer = None
                if isinstance(answer, StationFault):
                    raise located(answer)
                if answer is not None:
                    return decode(answer)
            self._step()


def on_node(make: Make, kind: str, watch: Watch) -> tuple[TakesPauses, int]:
    """Make an actor's engine, with its share of the node's cores."""
    import ray

    context = ray.get_runtime_context()
    (node,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    own = context.get_assigned_resources()
    cores = own["CPU"] if not own.get("GPU") else node.get("CPU", 1) * own["GPU"] / node["GPU"]
    return make(kind, watch, max(1, int(cores)))


def located(fault: StationFault) -> UserError:
    return UserError(f"{fault.message} (on the node {fault.host})", fault.hint)


def _remote_job(ticket: _Ticket) -> RemoteJob:
    job = ticket.job
    assignment = Assignment(job.kernel.text, job.op, job.bars, job.confirm, 0, None, job.setting)
    unique = job.duplicates is not None and not job.confirm
    file, text = "", ""
    if catalog.is_path(job.op) and (path := catalog.locate(job.op)).suffix == ".py":
        file, text = str(path), path.read_text(encoding="utf-8")
    return RemoteJob(ticket.number, encode(assignment), unique, file, text)


def _evaluation(line: bytes) -> Evaluation:
    done = decode(line)
    assert isinstance(done, Done)  # noqa: S101
    return done.evaluation


def _unique(job: Job, found: Evaluation) -> Evaluation:
    """Return the verdict, or the verdict on a duplicate if another station has evaluated the same machine code."""
    if found.outcome is Outcome.DUPLICATE or job.confirm or not job.duplicates or not found.traits:
        return found
    log = job.duplicates.by_code(found.kernel_id, found.traits.code)
    duplicate = Evaluation(found.kernel_id, found.op, found.device, Outcome.DUPLICATE, log, traits=found.traits)
    return replace(duplicate, seconds=found.seconds, created=found.created) if log else found
