"""Ray engine: evaluates on the nodes of a Ray cluster. Each actor holds one GPU, or some CPUs where there are no GPUs.

An actor that is lost, alone or with its node, is replaced as soon as the cluster has room, and other actors repeat its
jobs. Verdicts that it sent before the loss count, and later verdicts are ignored: nothing is lost or counted twice.
"""

import contextlib
import itertools
import re
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.devices import choose
from evolve.engines.cluster import AUTO, allocation_of, connect, default_device, sentence
from evolve.engines.engine import Job
from evolve.engines.messages import WAITING, Message, Ready, decode, encode
from evolve.engines.ray_actors import (
    Group,
    Make,
    Slot,
    Ticket,
    blamed,
    evaluation,
    located,
    on_node,
    remote_job,
    unique,
)
from evolve.engines.station import Hello, Station, StationFault, Watch, own_versions
from evolve.errors import UserError
from evolve.evaluation.requests import ProfileRequest, ProfileResult, TimingRequest, TimingResult

TICK_SECONDS, CLOSE_SECONDS = 0.2, 25.0
GROWTH_SECONDS = 10.0  # interval between two searches for new nodes
START_SECONDS = 300.0  # longest time without any actor
START_ATTEMPTS = 10  # number of actors in a row that are lost while they start, with no actor ready
CALLS_AT_ONCE = 8  # number of an actor's methods that may run at the same time

LACKING = re.compile(r"No module named '[^']+'")  # part of Ray's message about an actor that could not be created


class RayEngine:
    """Engine on a cluster. The actor that was ready first also confirms champions, profiles kernels and times PyTorch.

    Without a `kind`, the device is a GPU if the cluster has one, otherwise the emulated device. `gpu_types` are names
    that Ray gives to GPUs, such as H100; by default, the type of all GPUs of the cluster. Each type is a device with
    its own first actor. `make` is called in each actor, with the kind of the device, a watch and a number of cores. It
    returns an engine, and the number of jobs that keep the engine busy.
    """

    def __init__(
        self, kind: str, make: Make, watch: Watch | None = None, address: str = AUTO, gpu_types: Sequence[str] = ("",)
    ) -> None:
        self._ray, self._owns_connection = connect(address)
        self._kind, self._make = kind or default_device(self._ray.nodes(), gpu_types), make
        self._watch = watch or (lambda _subject, _phase: None)
        self._groups: list[Group] = []
        self._versions = own_versions()
        self._torch: Hello | None = None  # the first station, whose version of PyTorch the others must have
        self._faults = deque[StationFault]()
        self._numbers = itertools.count()
        self._looked = 0.0
        self._unprofiled, self._closed = "", False
        try:
            choose.check_kind(self._kind)
            nodes = self._ray.nodes()
            self._groups = [Group(name, allocation_of(nodes, self._kind, name)) for name in dict.fromkeys(gpu_types)]
        except UserError:
            self.close()
            raise
        self._keep_up()

    @property
    def info(self) -> DeviceInfo:
        """The first device, with the rates that its first actor has measured, once that actor is ready."""
        return self._info_of(self._groups[0])

    @property
    def devices(self) -> Sequence[DeviceInfo]:
        """The device of each type of GPU, once an actor of each is ready."""
        found = [self._info_of(group) for group in self._groups]
        if len({device.key for device in found}) < len(found):
            types = " and ".join(group.gpu_type for group in self._groups)
            raise UserError(f"{types} are the same device, {found[0].name}", "name one of them with --gpus")
        return found

    @property
    def idle(self) -> Collection[str]:
        """The keys of the devices that would be idle without another job."""
        return {group.info.key for group in self._groups if group.info and group.idle}

    @property
    def cards(self) -> int:
        """The current number of actors."""
        return len(self._slots())

    def on(self, device: str) -> "RayDevice":
        """Return the part of this engine that has the device with this key."""
        return RayDevice(self, next(group for group in self._groups if self._info_of(group).key == device))

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        yield from self.evaluate_on(self._groups, jobs)

    def evaluate_on(self, groups: Sequence[Group], jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        """Evaluate jobs for the devices of these groups, and take a job only if one of their actors would be idle."""
        self._forget_unfinished()
        infos = {self._info_of(group).key: group for group in groups}
        incoming, ended = iter(jobs), False
        verdicts: list[Evaluation] = []
        while True:
            try:
                # Jobs are distributed before verdicts are yielded, so that the actors stay busy while the caller
                # handles the verdicts.
                ended = self._fill(infos, iter(()) if ended else incoming)
            finally:
                yield from verdicts
            if ended and not any(group.waiting or any(slot.tickets for slot in group.slots) for group in groups):
                return
            verdicts = self._step()

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        return self.on(self.info.key).profile(kernel, op, workload)

    @property
    def unprofiled(self) -> str:
        return self._unprofiled

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        return self.on(self.info.key).time_pytorch(request)

    def close(self) -> None:
        """End the actors, which end their workers. If Ray no longer answers, the actors end with this process."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            closing = [slot.actor.close.remote() for slot in self._slots() if slot.hello]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for slot in self._slots():
            self._kill(slot)
        for group in self._groups:
            group.slots = []
        if self._owns_connection:
            self._ray.shutdown()

    def _slots(self) -> dict[Slot, Group]:
        return {slot: group for group in self._groups for slot in group.slots}

    def _info_of(self, group: Group) -> DeviceInfo:
        """Return the device of a group, once an actor is ready."""
        while group.info is None:
            self._step()
        return group.info

    def _forget_unfinished(self) -> None:
        """Forget the jobs of an abandoned `evaluate`."""
        self._faults.clear()
        for group in self._groups:
            group.forget()

    def _fill(self, groups: dict[str, Group], incoming: Iterator[Job | None]) -> bool:
        """Give jobs to the actors of these devices that have the fewest; return whether no jobs are left."""
        given = [pair for group in groups.values() for pair in group.assign()]
        ended = False
        while any(group.idle for group in groups.values()):
            job = next(incoming, self)  # `self` if there are no more jobs
            if job is self or job is None:
                ended = job is self
                break
            assert isinstance(job, Job)  # noqa: S101
            group = groups[job.device] if job.device else next(iter(groups.values()))
            group.waiting.append(Ticket(next(self._numbers), job))
            given += group.assign()
        chosen: dict[Slot, list[Ticket]] = {}
        for slot, ticket in given:
            chosen.setdefault(slot, []).append(ticket)
        for slot, tickets in chosen.items():
            slot.actor.submit.remote([remote_job(ticket) for ticket in tickets])
            for ticket in tickets:
                self._watch(ticket.job.kernel.id, WAITING)
        return ended

    def _step(self) -> list[Evaluation]:
        """Wait briefly for the actors, and return the verdicts that have arrived or follow from losses."""
        if time.monotonic() - self._looked > GROWTH_SECONDS:
            self._keep_up()
        asked = {slot.asked: (slot, group) for slot, group in self._slots().items()}
        if not asked:
            time.sleep(TICK_SECONDS)
        ready = self._ray.wait(list(asked), num_returns=1, timeout=TICK_SECONDS)[0] if asked else []
        if ready:
            ready = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)[0]
        if self._faults:
            raise located(self._faults.popleft())
        verdicts: list[Evaluation] = []
        for reference in ready:  # handle all events before a fault is raised, so that no verdict is lost
            verdicts += self._hear(*asked[reference])
        for group in self._groups:
            _check_alive(group)
        return verdicts

    def _hear(self, slot: Slot, group: Group) -> Iterator[Evaluation]:
        from ray.exceptions import RayError, RayTaskError

        try:
            answer = self._ray.get(slot.asked)
        except RayTaskError:  # an error in the station's own code
            raise
        except RayError as error:
            yield from self._lost(slot, group, str(error))
            return
        if isinstance(answer, StationFault):
            self._faults.append(answer)
            return
        slot.asked = slot.actor.events.remote()
        if isinstance(answer, Hello):
            self._ready(slot, group, answer)
            return
        for subject, phase in answer.phases.items():
            self._watch(subject, phase)
        self._faults += answer.faults
        for number, line in answer.verdicts:
            if ticket := slot.tickets.pop(number, None):
                slot.alone = False
                yield unique(ticket.job, evaluation(line))

    def _ready(self, slot: Slot, group: Group, hello: Hello) -> None:
        """Let an actor take part. Raises UserError unless its device and versions equal those of its group."""
        ready = decode(hello.device)
        assert isinstance(ready, Ready)  # noqa: S101
        assert ready.device  # noqa: S101 - an evaluator holds one
        self._torch = self._torch or hello
        if hello.versions.torch != self._torch.versions.torch:
            versions = f"{self._torch.host} has PyTorch {self._torch.versions.torch} and {hello.host} has "
            raise UserError(f"{versions}{hello.versions.torch}", "install the same version on all machines")
        if group.info and group.info.key != ready.device.key:
            message = f"{hello.host} has {ready.device.name}, and other nodes have {group.info.name}"
            raise UserError(f"{message}: their times cannot be compared", "name one type of GPU with --gpus")
        group.info, group.lost_starts, slot.hello = group.info or ready.device, 0, hello
        group.first = group.first or slot

    def _lost(self, slot: Slot, group: Group, reason: str) -> Iterator[Evaluation]:
        """Replace an actor that has died or cannot be reached, and queue its jobs again."""
        self._kill(slot)
        group.slots.remove(slot)
        if not slot.hello:
            group.lost_starts += 1
            if missing := LACKING.search(reason):
                raise UserError(
                    f"a node of the cluster cannot start an actor: {missing.group()}",
                    "install evolve-kernels with the same extras on all nodes, for the Python that Ray runs there",
                )
            if group.lost_starts >= START_ATTEMPTS and not any(other.hello for other in group.slots):
                raise UserError(f"no actor of the cluster could start: {sentence(reason)}", "see `ray status`")
        if slot is group.first:
            group.first = next((other for other in group.slots if other.hello), None)
        for ticket in reversed(slot.tickets.values()):
            ticket.losses += 1
            if ticket.at_fault:
                yield blamed(ticket, self._info_of(group), reason)
            else:
                group.waiting.appendleft(ticket)
        self._start_actors(group)

    def _keep_up(self) -> None:
        """Start actors for new nodes. Actors of lost nodes wait for room, which Ray's autoscaler notices."""
        self._looked = time.monotonic()
        for group in self._groups:
            if all(slot.hello for slot in group.slots):  # otherwise the new nodes replace the lost ones
                with contextlib.suppress(UserError):  # the cluster has no GPU now, but lost nodes may come back
                    count = allocation_of(self._ray.nodes(), self._kind, group.gpu_type).count
                    group.allocation = replace(group.allocation, count=max(group.allocation.count, count))
            self._start_actors(group)

    def _start_actors(self, group: Group) -> None:
        station = self._ray.remote(Station)
        while len(group.slots) < group.allocation.count:
            # A method that was lost is never called again by Ray itself: this engine decides which jobs are repeated.
            options = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": CALLS_AT_ONCE, "num_cpus": 1}
            actor = station.options(**{**options, **group.allocation.options}).remote(
                partial(on_node, self._make, self._kind)
            )
            group.slots.append(Slot(actor, actor.start.remote(self._versions)))

    def _kill(self, slot: Slot) -> None:
        with contextlib.suppress(Exception):  # the actor may be dead already
            self._ray.kill(slot.actor, no_restart=True)

    def ask(self, group: Group, request: ProfileRequest | TimingRequest) -> Message:
        """Return the answer of a group's first actor; if the actor is lost, that of its successor."""
        from ray.exceptions import RayError, RayTaskError

        while True:
            _, first = self._info_of(group), group.first
            if first:
                reference = first.actor.ask.remote(encode(request))
                while not self._ray.wait([reference], timeout=0)[0] and first is group.first:
                    self._step()
                try:
                    answer = self._ray.get(reference)
                except RayTaskError:
                    raise
                except RayError:  # `_step` notices that the actor is lost
                    answer = None
                if isinstance(answer, StationFault):
                    raise located(answer)
                if isinstance(message := decode(answer) if answer is not None else None, ProfileResult):
                    self._unprofiled = message.fault
                if message is not None:
                    return message
            self._step()


class RayDevice:
    """One device of a Ray engine, as an engine of its own. The Ray engine can do only one thing at a time."""

    def __init__(self, engine: RayEngine, group: Group) -> None:
        assert group.info  # noqa: S101 - the engine waits for it
        self._engine, self._group, self.info = engine, group, group.info

    @property
    def cards(self) -> int:
        return len(self._group.slots)

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        return self._engine.evaluate_on([self._group], jobs)

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        answer = self._engine.ask(self._group, ProfileRequest(kernel.text, op, workload))
        assert isinstance(answer, ProfileResult)  # noqa: S101
        return answer.profile

    @property
    def unprofiled(self) -> str:
        return self._engine.unprofiled

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        answer = self._engine.ask(self._group, request)
        assert isinstance(answer, TimingResult)  # noqa: S101
        return answer

    def close(self) -> None:
        """Do nothing: the Ray engine is closed as a whole."""


def _check_alive(group: Group) -> None:
    """Raise UserError if no actor has been ready for a long time."""
    if any(slot.hello for slot in group.slots):
        group.none_since = time.monotonic()
    elif time.monotonic() - group.none_since > START_SECONDS:
        gpu = f" with a GPU {group.gpu_type}" if group.gpu_type else ""
        raise UserError(
            f"no node of the cluster{gpu} has had room for an actor for {START_SECONDS:g} s",
            "see `ray status`: nodes may be lost, or busy with other jobs",
        )
