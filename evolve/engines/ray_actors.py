"""Actors of a Ray engine: the jobs that each was given, the groups of actors that hold the same type of GPU, and what
is sent to and from them.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from archive.records import DeviceInfo, Evaluation, Outcome
from evolve.engines.cluster import Allocation, sentence
from evolve.engines.engine import Job, TakesPauses
from evolve.engines.messages import Assignment, Done, decode, encode
from evolve.engines.station import Hello, RemoteJob, StationFault, Watch
from evolve.errors import UserError
from reference_ops import catalog

# number of losses after which a job is evaluated alone on an actor; after as many more, its kernel is at fault
MOST_LOSSES = 3

Make = Callable[[str, Watch, int], tuple[TakesPauses, int]]


@dataclass(eq=False)
class Ticket:
    """A job, and the number of times that it was lost with an actor."""

    number: int
    job: Job
    losses: int = 0

    @property
    def alone(self) -> bool:
        """Whether the job was lost so often that it is evaluated alone on an actor."""
        return self.losses >= MOST_LOSSES

    @property
    def at_fault(self) -> bool:
        """Whether the kernel is at fault: it was alone on its actor for half of the losses."""
        return self.losses >= 2 * MOST_LOSSES


@dataclass(eq=False)
class Slot:
    """An actor, the call whose answer is awaited, and the jobs that it was given."""

    actor: Any
    asked: Any
    hello: Hello | None = None
    tickets: dict[int, Ticket] = field(default_factory=dict)
    alone: bool = False  # the actor has a job that is evaluated alone

    @property
    def free(self) -> int:
        return self.hello.depth - len(self.tickets) if self.hello and not self.alone else 0


@dataclass(eq=False)
class Group:
    """The actors that hold the same type of GPU, and the jobs that wait for one of them."""

    gpu_type: str  # empty if the cluster's GPUs have one type, or on CPUs
    allocation: Allocation
    slots: list[Slot] = field(default_factory=list)
    waiting: deque[Ticket] = field(default_factory=deque)
    first: Slot | None = None  # the actor that was ready first
    info: DeviceInfo | None = None  # the device, as the first actor has measured it
    lost_starts: int = 0  # number of actors in a row that were lost while they started
    none_since: float = field(default_factory=time.monotonic)  # time since which no actor is ready

    @property
    def idle(self) -> bool:
        """Whether an actor would be idle without another job. While none is ready, the next one would be."""
        ready = [slot for slot in self.slots if slot.hello]
        return not self.waiting and (not ready or any(slot.free > 0 for slot in ready))

    def slot_for(self, ticket: Ticket) -> Slot | None:
        """Return the least busy actor that may get a job.

        A confirmation needs the first actor. A job that was lost several times needs an idle actor.
        """
        slots = [slot for slot in self.slots if slot.free > 0]
        if ticket.job.confirm and self.first:
            slots = [slot for slot in slots if slot is self.first]
        if ticket.alone:
            slots = [slot for slot in slots if not slot.tickets]
        return max(slots, key=lambda slot: slot.free, default=None)

    def assign(self) -> Iterator[tuple[Slot, Ticket]]:
        """Assign waiting jobs to the actors that have the fewest, and yield them."""
        while self.waiting and (slot := self.slot_for(self.waiting[0])):
            ticket = self.waiting.popleft()
            slot.tickets[ticket.number] = ticket
            slot.alone = ticket.alone
            yield slot, ticket

    def forget(self) -> None:
        """Forget all jobs. Actors still finish them; the verdicts are ignored."""
        self.waiting.clear()
        for slot in self.slots:
            slot.tickets, slot.alone = {}, False


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


def remote_job(ticket: Ticket) -> RemoteJob:
    job = ticket.job
    assignment = Assignment(job.kernel.text, job.op, job.bars, job.confirm, 0, None, job.setting)
    is_unique = job.duplicates is not None and not job.confirm
    file, text = "", ""
    if catalog.is_path(job.op) and (path := catalog.locate(job.op)).suffix == ".py":
        file, text = str(path), path.read_text(encoding="utf-8")
    return RemoteJob(ticket.number, encode(assignment), is_unique, file, text)


def blamed(ticket: Ticket, device: DeviceInfo, reason: str) -> Evaluation:
    kernel = ticket.job.kernel
    log = (
        f"{ticket.losses} actors were lost with it, the last {MOST_LOSSES} while it was their only kernel: "
        f"{sentence(reason)}"
    )
    return Evaluation(kernel.id, kernel.op, device, Outcome.CRASHED, log, created=time.time())


def evaluation(line: bytes) -> Evaluation:
    done = decode(line)
    assert isinstance(done, Done)  # noqa: S101
    return done.evaluation


def unique(job: Job, found: Evaluation) -> Evaluation:
    """Return the verdict, or the verdict on a duplicate if another station has evaluated the same machine code."""
    if found.outcome is Outcome.DUPLICATE or job.confirm or not job.duplicates or not found.traits:
        return found
    log = job.duplicates.by_code(found.kernel_id, found.traits.code)
    duplicate = Evaluation(found.kernel_id, found.op, found.device, Outcome.DUPLICATE, log, traits=found.traits)
    return replace(duplicate, seconds=found.seconds, created=found.created) if log else found
