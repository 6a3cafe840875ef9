"""Missing baselines of judged kernels.

Each baseline is compiled ahead, then timed once for all kernels that wait for it. A kernel that has passed was timed
beside eager PyTorch. Its verdict is given when the times of torch.compile at its workloads are known as well; until
then, evaluators continue with other kernels.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import geometric_mean

from archive.records import Evaluation, Standard
from evolve.devices.choose import EAGER
from evolve.engines.messages import RIGHT
from evolve.errors import UserError
from evolve.evaluation.baseline_times import completed
from evolve.evaluation.requests import PreparationRequest, TimingRequest, TimingResult

ATTEMPTS = 2  # number of attempts to time the baselines at one workload


@dataclass(frozen=True)
class Place:
    """A workload of an op, and the card on which PyTorch is timed: cards of one kind differ slightly."""

    op: str  # as the catalog loads it
    workload: str
    card: str


@dataclass(frozen=True, eq=False)
class _Held:
    """An evaluation whose measurements at some places are incomplete."""

    evaluation: Evaluation
    places: tuple[Place, ...]


def beside_eager(evaluation: Evaluation) -> str:
    """Return the phase of a kernel that has been timed only beside eager PyTorch, with its speedup so far."""
    over = geometric_mean([one.eager_us / one.median_us for one in evaluation.measurements])
    return f"{RIGHT}{over:.2f}x eager PyTorch; torch.compile is timed next"


class LackingBaselines:
    """The evaluations that are held until their baselines are known, and the work on these baselines."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [name for name in names if name != EAGER]
        # None where PyTorch cannot be timed: only eager PyTorch's time is used there
        self._times: dict[Place, Standard | None] = {}
        self._held: list[_Held] = []
        self._to_time: deque[Place] = deque()
        self._timing = set[Place]()
        self._faults: Counter[Place] = Counter()
        self._to_compile: deque[PreparationRequest] = deque()
        self._compiling = set[PreparationRequest]()
        self._compiled = set[PreparationRequest]()  # compiled, or tried without success
        self._given_up: dict[str, str] = {}  # the first baseline that takes too long to compile; key: op

    @property
    def waiting(self) -> bool:
        """Whether an evaluation is held."""
        return bool(self._held)

    @property
    def to_compile(self) -> int:
        """The number of compilations that no worker has taken yet."""
        return len(self._to_compile)

    def hold(
        self, evaluation: Evaluation, op: str, card: str, workloads: Collection[str], *, ahead: bool
    ) -> Iterator[Evaluation]:
        """Hold an evaluation until the baselines at these workloads are known; `ahead` compiles them ahead."""
        places = tuple(Place(op, workload, card) for workload in workloads)
        self._held.append(_Held(evaluation, places))
        for place in places:
            if place in self._times or place in self._to_time or place in self._timing:
                continue
            self._to_time.append(place)
        if ahead:
            self.compile_next(op, workloads)
        yield from self._complete()

    def compile_later(self, op: str, workloads: Collection[str]) -> None:
        """Request that the baselines at these workloads are compiled ahead, after those already requested."""
        wanted = [one for workload in workloads for one in self._preparations(op, workload)]
        self._to_compile.extend(one for one in wanted if one not in self._compiled and not self._under_way(one))

    def compile_next(self, op: str, workloads: Collection[str]) -> None:
        """Request that the baselines at these workloads are compiled first, because a kernel is judged at them."""
        wanted = [one for workload in workloads for one in self._preparations(op, workload)]
        wanted = [one for one in wanted if one not in self._compiled and one not in self._compiling]
        self._to_compile = deque([*wanted, *(one for one in self._to_compile if one not in wanted)])

    def take_compilation(self) -> PreparationRequest | None:
        """Return the next compilation for a worker that is free, if there is one."""
        if not self._to_compile:
            return None
        request = self._to_compile.popleft()
        self._compiling.add(request)
        return request

    def end_compilation(self, request: PreparationRequest, *, too_long: bool = False) -> None:
        """Record that a worker has finished a compilation. If it failed, the baseline is compiled when it is timed.

        A baseline that took too long is given up at all workloads of the op, as are the baselines after it.
        """
        self._compiling.discard(request)
        self._compiled.add(request)
        if too_long:
            earlier = self._given_up.get(request.op, request.baseline)
            self._given_up[request.op] = min(earlier, request.baseline, key=self._names.index)
            wanted = [one for one in self._to_compile if one in self._preparations(one.op, one.workload)]
            self._to_compile = deque(wanted)

    def compile_no_more(self) -> None:
        """Drop the compilations that no worker has taken; the evaluators compile those baselines."""
        self._compiled.update(self._to_compile)
        self._to_compile.clear()

    def request(self, place: Place) -> TimingRequest:
        """Return the request to time a place, without the baselines that are given up."""
        return TimingRequest(place.op, place.workload, given_up=self._given_up.get(place.op, ""))

    def take_place(self, card: str) -> tuple[Place, str] | None:
        """Return the next compiled place to time on this card, and the kernel that waits for it."""
        for place in self._to_time:
            if place.card == card and not any(map(self._under_way, self._preparations(place.op, place.workload))):
                self._to_time.remove(place)
                self._timing.add(place)
                waiting = next((held for held in self._held if place in held.places), None)
                return place, waiting.evaluation.kernel_id if waiting else place.op
        return None

    def end_timing(self, place: Place, result: TimingResult | None) -> Iterator[Evaluation]:
        """Yield the evaluations that are complete with these times. None means that the worker has ended.

        Raises UserError if the op cannot be judged at this workload.
        """
        self._timing.discard(place)
        if result and result.hint:
            raise UserError(result.fault, result.hint)
        if result and result.standard:
            self._times[place] = result.standard
        else:
            self._faults[place] += 1
            if self._faults[place] < ATTEMPTS:
                self._to_time.append(place)
            else:
                self._times[place] = None
        yield from self._complete()

    def drop(self) -> None:
        """Forget the evaluations that are held. Compilations continue, because later evaluations may need them."""
        self._held.clear()
        self._to_time.clear()
        self._timing.clear()

    def _complete(self) -> Iterator[Evaluation]:
        ready = [held for held in self._held if all(place in self._times for place in held.places)]
        self._held = [held for held in self._held if held not in ready]
        for held in ready:
            times = {place.workload: self._times[place] for place in held.places}
            measurements = tuple(
                completed(one, standard) if (standard := times.get(one.workload)) else one
                for one in held.evaluation.measurements
            )
            yield replace(held.evaluation, measurements=measurements)

    def _preparations(self, op: str, workload: str) -> list[PreparationRequest]:
        names = takewhile(lambda name: name != self._given_up.get(op), self._names)
        return [PreparationRequest(op, workload, name) for name in names]

    def _under_way(self, request: PreparationRequest) -> bool:
        return request in self._compiling or request in self._to_compile
