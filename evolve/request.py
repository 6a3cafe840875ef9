"""The contract of a proposer, which gets ops, kernels and their evaluations, but never a device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, overload

from archive.kernel import Kernel, Proposal
from archive.records import DeviceInfo, Evaluation, Profile
from archive.summaries import Trial, Tried
from reference_ops.op import Op

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate:
    """A kernel and the verdict on it."""

    kernel: Kernel
    evaluation: Evaluation
    profiles: tuple[Profile, ...] = ()  # a profiler's counters, at most one record per workload

    @property
    def kernel_id(self) -> str:
        return self.kernel.id

    @property
    def family(self) -> str:
        return self.kernel.family

    @property
    def settings(self) -> Mapping[str, int]:
        return self.kernel.settings


Attempt = Candidate | Tried  # a kernel with a verdict, as the tuner reads it
ReadsKernels = Callable[[Sequence[str]], Mapping[str, Kernel]]  # returns kernels by their ids


@dataclass(frozen=True)
class Left:
    """The tokens and dollars that a run may still spend on models. None means no limit."""

    tokens: int | None = None
    usd: float | None = None
    evals: int | None = None  # evaluations; requests that give no kernel do not count
    deadline: float = float("inf")  # time of time.monotonic after which no model is called


@dataclass(frozen=True)
class Request:
    """A request for kernels, with everything that the proposer may know."""

    op: Op
    device: DeviceInfo
    wanted: int  # largest number of kernels
    seed: int  # seed from which every choice of the proposer follows
    run: str = ""  # the run to which the proposals belong
    population: tuple[Candidate, ...] = ()  # kernels that are alive, fittest first
    parents: tuple[Candidate, ...] = ()  # parents drawn from the population for this request
    failures: tuple[Candidate, ...] = ()  # kernels that failed and were not yet repaired, newest first
    known: frozenset[str] = frozenset()  # ids of all kernels of this op in the archive
    tried: Sequence[Attempt] = ()  # every kernel of this op with a verdict on this device, oldest first
    donors: tuple[Candidate, ...] = ()  # champions of other ops on this device
    pytorch_us: tuple[tuple[str, float], ...] = ()  # the latest best time of PyTorch, by workload; only GPU times
    lessons: tuple[str, ...] = ()  # lessons from earlier attempts, one sentence each
    untried: bool = False  # whether the run has no kernel to start from, so that it may ask for several designs first
    trials: tuple[Trial, ...] = ()  # earlier proposals of this op, oldest first
    left: Left = field(default=Left())
    kernels: ReadsKernels = field(default=lambda _: {}, compare=False)  # reads the texts of kernels in `tried`


class ReadWhenAsked(Sequence[T]):
    """A sequence that is read on first access, because few proposers need every tried kernel."""

    def __init__(self, read: Callable[[], Sequence[T]]) -> None:
        self._read = read
        self._found: Sequence[T] | None = None

    def __len__(self) -> int:
        return len(self._items())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._items()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _items(self) -> Sequence[T]:
        if self._found is None:
            self._found = self._read()
        return self._found


class Proposer(Protocol):
    """A source of kernels."""

    @property
    def name(self) -> str:
        """The proposer's name in its proposals: `offline`, `tell`, or a model's name."""

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Yield proposals as they arrive, or none if nothing is left to try."""


MOST_WITHOUT_KERNEL = 100  # number of requests in a row without a kernel after which a proposer is no longer asked


class Bounded:
    """A proposer that stops after too many requests without a kernel, because these do not count as evaluations."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer, self._without_kernel = proposer, 0

    @property
    def name(self) -> str:
        return self._proposer.name

    def propose(self, request: Request) -> Iterator[Proposal]:
        if self._without_kernel >= MOST_WITHOUT_KERNEL:
            return
        for proposal in self._proposer.propose(request):
            self._without_kernel = 0 if proposal.kernel else self._without_kernel + 1
            yield proposal
