"""Station: an engine that is used from another machine. It runs in an actor and does not depend on the cluster.

Kernels and the files of a user's ops are received as text, and verdicts are sent as lines of JSON.
"""

import hashlib
import queue
import shutil
import socket
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from archive import kernel as genome
from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.engines.engine import Job, TakesPauses, TimesPyTorch
from evolve.engines.messages import Assignment, Done, Ready, decode, encode
from evolve.errors import UserError
from evolve.evaluation.requests import ProfileRequest, ProfileResult, TimingRequest, TimingResult

T = TypeVar("T")
Answer = Callable[[Evaluation | BaseException], None]


@dataclass(frozen=True, eq=False)
class _Order:
    """A job, and the function that receives its evaluation or the error that ended it."""

    job: Job
    answer: Answer


class SharedEngine:
    """The engine that all threads share. Each `evaluate` takes up to `depth` jobs before it waits for an evaluation.

    Other work, such as a profile, begins when the current jobs are done, and later jobs wait until it ends.
    """

    def __init__(self, engine: TakesPauses, depth: int) -> None:
        self._engine, self._depth = engine, depth
        self._changed = threading.Condition()
        self._waiting, self._sides = deque[_Order](), deque[Callable[[], None]]()
        self._under_way = defaultdict[str, deque[_Order]](deque)  # key: the kernel's id
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> DeviceInfo:
        return self._aside(lambda: self._engine.info)

    @property
    def unprofiled(self) -> str:
        return self._engine.unprofiled

    def submit(self, job: Job, answer: Answer) -> None:
        """Evaluate a job; `answer` is called in the engine's thread."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine was closed")
            self._waiting.append(_Order(job, answer))
            self._changed.notify_all()

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        incoming, arrived, pending = iter(jobs), queue.SimpleQueue[Evaluation | BaseException](), 0
        while True:
            while pending < self._depth and (job := next(incoming, None)):
                self.submit(job, arrived.put)
                pending += 1
            if not pending:
                return
            found = arrived.get()
            pending -= 1
            if isinstance(found, BaseException):
                raise found
            yield found

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        return self._aside(lambda: self._engine.profile(kernel, op, workload))

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        engine = self._engine
        if not isinstance(engine, TimesPyTorch):
            raise UserError("this engine does not time PyTorch", "use the local engine")
        return self._aside(lambda: engine.time_pytorch(request))

    def close(self) -> None:
        """Close the engine. Jobs that still wait get a RuntimeError as their answer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._engine.close()
        # the thread may be waiting for an engine that was closed: then it ends by itself
        self._thread.join(timeout=1.0)

    def _aside(self, what: Callable[[], T]) -> T:
        """Call a function in the engine's thread while no evaluation runs, and return its result."""
        done = queue.SimpleQueue[tuple[T | None, BaseException | None]]()

        def side() -> None:
            try:
                done.put((what(), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                done.put((None, error))

        with self._changed:
            if self._closed:
                raise RuntimeError("the engine was closed")
            self._sides.append(side)
            self._changed.notify_all()
        value, error = done.get()
        if error:
            raise error
        return value  # type: ignore[return-value]

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting or self._sides)
                if self._closed:
                    break
                side = self._sides.popleft() if self._sides else None
            if side:
                side()
            else:
                self._evaluate()
        self._fail(RuntimeError("the engine was closed"))

    def _evaluate(self) -> None:
        """Evaluate until no job waits or runs, or until a side request waits."""
        try:
            for evaluation in self._engine.evaluate(self._jobs()):
                with self._changed:
                    orders = self._under_way[evaluation.kernel_id]
                    order = orders.popleft()
                    if not orders:
                        del self._under_way[evaluation.kernel_id]
                order.answer(evaluation)
        except BaseException as error:  # noqa: BLE001 - raised again in the threads that wait for evaluations
            self._fail(error)

    def _jobs(self) -> Iterator[Job | None]:
        while True:
            with self._changed:
                if self._closed or self._sides:
                    return
                order = self._waiting.popleft() if self._waiting else None
                if order:
                    self._under_way[order.job.kernel.id].append(order)
                elif not self._under_way:
                    return
            yield order.job if order else None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            orders = [order for under_way in self._under_way.values() for order in under_way]
            if self._closed:
                orders += self._waiting
                self._waiting.clear()
            self._under_way.clear()
        for order in orders:
            order.answer(error)


EVENT_SECONDS = 10.0  # longest wait for an event
ROOT = Path(__file__).resolve().parents[2]
PACKAGES, CODE = ("archive", "evolve", "reference_ops"), ("*.py", "*.h", "*.cpp")

Watch = Callable[[str, str], None]


@dataclass(frozen=True)
class StationFault:
    """An error that the user can correct, and the machine on which it occurred."""

    message: str
    hint: str
    host: str


@dataclass(frozen=True)
class Versions:
    """Versions that must be equal on all machines of a run: a hash of this package's code, and PyTorch's version."""

    code: str
    torch: str
    package: str = ""  # version of the package; two states of the code may have the same version

    @property
    def words(self) -> str:
        return f"{self.package or 'some version'} (code {self.code})"


@dataclass(frozen=True)
class Hello:
    """Report of a station that is ready: its device as a line of JSON, its machine, and how many jobs keep it busy."""

    device: bytes
    host: str
    versions: Versions
    depth: int


@dataclass(frozen=True)
class RemoteJob:
    """A job that is sent to a station. The op's file is sent along if there is one: machines may not share a disk."""

    number: int
    assignment: bytes
    unique: bool = False  # do not run the kernel if it compiles to the same machine code as another kernel
    file: str = ""  # path of the user's file that defines the op, and its text
    text: str = ""


@dataclass
class Events:
    """The events at a station since the last request for them."""

    phases: dict[str, str] = field(default_factory=dict)  # the latest phase of each kernel; key: its id
    verdicts: list[tuple[int, bytes]] = field(default_factory=list)
    faults: list[StationFault] = field(default_factory=list)

    @property
    def some(self) -> bool:
        return bool(self.phases or self.verdicts or self.faults)


class Station:
    """The engine that `make` returns, for a driver on another machine. Methods may be called concurrently."""

    def __init__(self, make: Callable[[Watch], tuple[TakesPauses, int]]) -> None:
        self._make = make
        self._host = socket.gethostname()
        self._engine: SharedEngine | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="evolve-station-"))
        self._happened, self._events = threading.Condition(), Events()
        self._codes = defaultdict[str, OwnCodes](OwnCodes)  # by op

    def start(self, expected: Versions) -> Hello | StationFault:
        """Start the engine and wait for its device. Raise an error for another version of this package."""
        own = own_versions()
        if own.code != expected.code:
            message = f"this machine has evolve-kernels {own.words}, and the run was started with {expected.words}"
            hint = (
                "install the same version on all machines of the cluster: pip install the same wheel or checkout there"
            )
            return StationFault(message, hint, self._host)
        try:
            engine, depth = self._make(self._watch)
            self._engine = SharedEngine(engine, depth)
            return Hello(encode(Ready(self._engine.info)), self._host, own, depth)
        except UserError as error:
            return StationFault(str(error), error.hint, self._host)

    def submit(self, jobs: list[RemoteJob]) -> None:
        for remote in jobs:
            assignment = decode(remote.assignment)
            assert isinstance(assignment, Assignment)  # noqa: S101 - a remote job holds nothing else
            kernel, op = genome.parse(assignment.kernel), self._local(assignment.op, remote)
            codes = self._codes[kernel.op] if remote.unique else None
            job = Job(kernel, op, assignment.bars, assignment.setting, assignment.confirm, duplicates=codes)
            self._ready.submit(job, lambda answer, number=remote.number: self._answer(number, answer))  # type: ignore[misc]

    def events(self) -> Events:
        """Wait for events, and return them."""
        with self._happened:
            self._happened.wait_for(lambda: self._events.some, EVENT_SECONDS)
            found, self._events = self._events, Events()
        return found

    def ask(self, request: bytes) -> bytes | StationFault:
        """Return the answer to a request other than a job."""
        message = decode(request)
        try:
            if isinstance(message, ProfileRequest):
                profile = self._ready.profile(genome.parse(message.kernel), message.op, message.workload)
                return encode(ProfileResult(profile, "" if profile else self._ready.unprofiled))
            assert isinstance(message, TimingRequest)  # noqa: S101 - there are no other requests
            return encode(self._ready.time_pytorch(message))
        except UserError as error:
            return StationFault(str(error), error.hint, self._host)

    def close(self) -> None:
        if self._engine:
            self._engine.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _ready(self) -> SharedEngine:
        if self._engine is None:
            raise RuntimeError("the station was not started")
        return self._engine

    def _watch(self, subject: str, phase: str) -> None:
        with self._happened:
            self._events.phases[subject] = phase
            self._happened.notify_all()

    def _answer(self, number: int, answer: Evaluation | BaseException) -> None:
        with self._happened:
            if isinstance(answer, Evaluation):
                self._events.verdicts.append((number, encode(Done(answer))))
            elif isinstance(answer, UserError):
                self._events.faults.append(StationFault(str(answer), answer.hint, self._host))
            else:
                self._events.faults.append(StationFault(f"{type(answer).__name__}: {answer}", "", self._host))
            self._happened.notify_all()

    def _local(self, op: str, remote: RemoteJob) -> str:
        """Return the op's locator on this machine. A file that is missing here, or that differs, is written."""
        file = Path(remote.file)
        if not remote.file or (file.is_file() and file.read_text(encoding="utf-8") == remote.text):
            return op
        own = self._folder / hashlib.sha256(remote.text.encode()).hexdigest()[:16] / file.name
        own.parent.mkdir(exist_ok=True)
        own.write_text(remote.text, encoding="utf-8")
        return op.replace(remote.file, str(own))


class OwnCodes:
    """The machine codes that this station has compiled. Duplicates across stations are found when verdicts arrive."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}  # id of the first kernel with each machine code

    def by_code(self, kernel_id: str, code: str) -> str:
        first = self._first.setdefault(code, kernel_id)
        return "" if first == kernel_id else f"compiles to the same machine code as kernel {first}"


@cache
def code_version() -> str:
    """Return a hash of this package's code, because a version number does not show local changes."""
    files = sorted(file for package in PACKAGES for ending in CODE for file in (ROOT / package).rglob(ending))
    whole = hashlib.sha256()
    for file in files:
        whole.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


def own_versions() -> Versions:
    """Return the versions on this machine. PyTorch's version omits the build, which differs with and without a GPU."""
    return Versions(code_version(), _version("torch").partition("+")[0] or "none", _version("evolve-kernels"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
