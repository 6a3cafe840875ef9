"""A view of one op on one device: its records in the archive, read once and then kept up to date."""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from archive.kernel import Kernel
from archive.records import SHIPPED, DeviceInfo, Evaluation, Merged, Outcome, Profile, kind_in
from archive.runs import EVERYTHING, Scope
from archive.store import Store, evaluations_of, uncollected
from archive.summaries import EvaluationSummary, Judged, KernelSummary, ProposalSummary, Timing, Tried
from evolve.devices.choose import policy_of
from evolve.request import Candidate
from evolve.selection import population
from evolve.selection.duplicates import Originals, Texts
from evolve.selection.history import History, TriedKernels
from evolve.selection.lessons import Lessons, shortened
from evolve.selection.population import Champion, Ranking

READ_AT_ONCE = 2_000  # number of records read at the same time; less of each is kept


class OpView:
    """An op on a device as archived. Every method includes all records that any process has appended before the call.

    A kernel counts if the scope includes it; verdicts on other kernels are used only to find duplicates. A kernel that
    only ships with the package counts once it has a verdict on the device, or is requested.
    """

    def __init__(self, store: Store, op: str, device: DeviceInfo, scope: Scope = EVERYTHING) -> None:
        self.store, self.op, self.device, self.scope = store, op, device, scope
        self._all: dict[str, str] = {}  # family of every kernel of the op, oldest first
        self._judged: dict[str, EvaluationSummary] = {}  # the current verdict on each kernel on the device
        self._originals = Originals(self._judged)
        self._texts = Texts(lambda ids: store.find(Kernel, ids=ids))
        self._proposals: list[ProposalSummary] = []  # proposals in the scope, oldest first
        self._proposed: set[str] = set()  # the kernels in these proposals
        self._used = Counter[str]()  # how often each kernel was a parent
        self._families: dict[str, str] = {}  # family of each kernel that counts
        self._waiting: dict[str, None] = {}  # kernels that count and have no verdict, oldest first
        # shipped kernels that do not count yet, with their proposals
        self._dormant: dict[str, list[ProposalSummary]] = {}
        self._asked = set[str]()  # kernels that the run proposed or starts from
        self._repairs: list[ProposalSummary] = []
        self._read = [0, 0, 0]  # row numbers of the last kernel, proposal and evaluation read
        self._kernels: dict[str, Kernel] = {}
        self._evaluations: dict[str, Evaluation] = {}
        self._contenders: dict[str, EvaluationSummary] | None = None  # verdicts of the champions and their rivals
        self._newest: dict[str, EvaluationSummary] = {}  # the newest verdict for each set of timed workloads
        self._ranking: Ranking[EvaluationSummary] | None = None  # ranks kernels that count
        self._alive: tuple[EvaluationSummary, ...] | None = None
        self._tried = TriedKernels(lambda ids: store.find(Kernel, ids=ids))
        self._past: tuple[History, Lessons] | None = None
        # number of verdicts on other devices at the time when `_elsewhere` was read
        self._counts_elsewhere: Mapping[str, int] = {}
        self._elsewhere = frozenset[str]()  # kernels that GPUs had judged at that time
        # records that were read but not yet added to the history
        self._unheard: list[ProposalSummary | EvaluationSummary] = []

    # The known records.

    def known(self) -> frozenset[str]:
        """Return the ids of all kernels of the op."""
        self._refresh()
        return frozenset(self._all)

    def proposals(self) -> Sequence[ProposalSummary]:
        """Return the proposals in the scope, oldest first."""
        self._refresh()
        return self._proposals

    def verdicts(self) -> Mapping[str, EvaluationSummary]:
        """Return the current verdicts on the device by kernel, including kernels that do not count."""
        self._refresh()
        return self._judged

    def families(self) -> Mapping[str, str]:
        """Return the family of each kernel that counts."""
        self._refresh()
        return self._families

    def repairs(self) -> Sequence[ProposalSummary]:
        """Return the proposals in the scope that repair a kernel, oldest first."""
        self._refresh()
        return sorted(self._repairs, key=lambda proposal: (proposal.created, proposal.number))

    def used(self) -> Counter[str]:
        """Return the number of times that each kernel was a parent."""
        self._refresh()
        return self._used

    def history(self) -> tuple[History, Lessons]:
        """Return the trials so far, and the lessons from them."""
        self._refresh()
        if self._past is None:
            self._past = (
                History(self._families, self._judged), Lessons(self._families, self._judged, self.kernels)
            )  # fmt: skip
            verdicts = (verdict for kernel_id, verdict in self._judged.items() if kernel_id in self._families)
            self._unheard = [*self._proposals, *sorted(verdicts, key=lambda one: (one.created, one.number))]
        history, lessons = self._past
        with uncollected():
            for record in self._unheard:
                if isinstance(record, ProposalSummary):
                    history.propose(record)
                    lessons.propose(record)
                else:
                    lessons.judge(record)
                    if not history.judge(record):
                        self._past = None
                        return self.history()
        self._unheard = []
        return self._past

    # Data for the next steps.

    def ask_for(self, kernels: Iterable[str]) -> None:
        """Count these kernels as pending, even if they are shipped or, on another device than a GPU, judged by GPUs."""
        self._asked.update(kernels)
        for kernel_id in self._dormant.keys() & self._asked - self.scope.excluded:
            self._wake(kernel_id)

    def pending(self, *, every: bool = False) -> list[str]:
        """Return the kernels that count and have no verdict on the device, oldest first.

        Without `every`, a device without GPU times leaves out kernels that a GPU has judged, except requested ones and
        those that the run itself has proposed.
        """
        self._refresh()
        elsewhere = frozenset[str]() if every or not self._waiting else self._judged_on_gpus()
        return [kernel_id for kernel_id in self._waiting if kernel_id not in elsewhere or kernel_id in self._asked]

    def _judged_on_gpus(self) -> frozenset[str]:
        """Return the kernels that GPUs have judged; they are read again if other devices have given verdicts."""
        if policy_of(self.device.kind).times_are_gpu_times:
            return frozenset()
        counts = self.store.count(EvaluationSummary, "device", self.op)
        counts.pop(self.device.key, None)
        if counts != self._counts_elsewhere:
            self._counts_elsewhere, self._elsewhere = counts, judged_on_gpus(self.store, self.op, self.device)
        return self._elsewhere

    def unconfirmed(self) -> list[Kernel]:
        """Return the champions that were not confirmed here, but in another archive, in the package or not at all."""
        in_force = {leader.kernel_id: leader.confirmed for leader in self.leaders().values()}
        leading = list(in_force)
        confirmed = self.store.find(
            EvaluationSummary, self.op, device=self.device.key, confirmed=True, shipped=False, kernels=leading
        )
        merged = {one.evaluation_id for one in self.store.find(Merged, ids=[verdict.id for verdict in confirmed])}
        tested = {verdict.kernel_id for verdict in confirmed if verdict.id not in merged}
        waiting = [one for one in leading if one in self._all and not (in_force[one] and one in tested)]
        return list(self.kernels(waiting).values())

    def last_read(self, kernel_id: str) -> str:
        """Return the id of the current verdict on a kernel as of the last reading, or an empty string."""
        verdict = self._judged.get(kernel_id)
        return verdict.id if verdict else ""

    # The fittest kernels.

    def leaders(self) -> dict[str, EvaluationSummary]:
        """Return the champion's verdict on each workload."""
        self._refresh()
        if self._contenders is None:
            every = [self._judged[one] for one in sorted(self._judged) if self._counts(one)]
        else:
            every = list(self._contenders.values())
        leaders = population.leaders(every)
        confirmed = population.leaders(verdict for verdict in every if verdict.confirmed)
        self._contenders = {verdict.kernel_id: verdict for verdict in (*leaders.values(), *confirmed.values())}
        return leaders

    def champions(self) -> tuple[Champion, ...]:
        """Return the champion on each workload with its measurement and its duel."""
        leaders = self.leaders()
        evaluations = self.evaluations(leaders.values())
        return tuple(population.champion(w, evaluations[leader.id]) for w, leader in leaders.items())

    def leading_times(self) -> dict[str, Timing]:
        """Return the champion's times on each workload."""
        return {
            workload: timing
            for workload, leader in self.leaders().items()
            for timing in leader.measurements
            if timing.workload == workload
        }

    def bars(self) -> tuple[tuple[str, float], ...]:
        """Return the time to beat on each workload, in us."""
        return tuple((workload, timing.median_us) for workload, timing in self.leading_times().items())

    def latest_times(self) -> Mapping[str, Timing]:
        """Return the latest times on each workload from any evaluation, which include PyTorch's times."""
        self._refresh()
        in_order = sorted(self._newest.values(), key=lambda verdict: (verdict.created, verdict.number))
        return {timing.workload: timing for verdict in in_order for timing in verdict.measurements}

    def alive(self) -> tuple[EvaluationSummary, ...]:
        """Return the verdicts on the kernels alive, fittest first."""
        self._refresh()
        if self._ranking is None:
            self._ranking = Ranking[EvaluationSummary]()
            self._ranking.add(verdict for kernel_id, verdict in self._judged.items() if kernel_id in self._families)
            self._alive = None
        if self._alive is None:
            leaders = (leader for leader in self.leaders().values() if leader.kernel_id in self._families)
            self._alive = self._ranking.alive(leaders)
        return self._alive

    # Complete records of a few kernels.

    def kernels(self, ids: Iterable[str]) -> dict[str, Kernel]:
        """Return these kernels by their ids. Ids that are not in the archive are left out."""
        wanted = list(dict.fromkeys(ids))
        if missing := [kernel_id for kernel_id in wanted if kernel_id not in self._kernels]:
            self._kernels |= {kernel.id: kernel for kernel in self.store.find(Kernel, ids=missing)}
        return {kernel_id: self._kernels[kernel_id] for kernel_id in wanted if kernel_id in self._kernels}

    def evaluations(self, verdicts: Iterable[EvaluationSummary]) -> dict[str, Evaluation]:
        """Return the evaluations that these verdicts summarise, by their ids."""
        wanted = list(verdicts)
        if missing := [verdict for verdict in wanted if verdict.id not in self._evaluations]:
            self._evaluations |= evaluations_of(self.store, missing)
        return {verdict.id: self._evaluations[verdict.id] for verdict in wanted}

    def candidates(self, verdicts: Sequence[EvaluationSummary]) -> tuple[Candidate, ...]:
        """Return the kernels with their evaluations, and the latest profile of each on every workload."""
        ids = [verdict.kernel_id for verdict in verdicts]
        kernels, evaluations = self.kernels(ids), self.evaluations(verdicts)
        profiles = defaultdict[str, dict[str, Profile]](dict)
        for profile in self.store.find(Profile, self.op, kernels=ids) if ids else ():
            if profile.device == self.device.key:
                profiles[profile.kernel_id][profile.workload] = profile
        return tuple(
            Candidate(kernels[one.kernel_id], evaluations[one.id], tuple(profiles[one.kernel_id].values()))
            for one in verdicts
        )

    def tried(self) -> Sequence[Tried]:
        """Return every kernel with a verdict, oldest first; a duplicate has its original's, if that is known."""
        self._refresh()
        return self._tried.oldest_first(self._families, self._told_of)

    # Kernels that a duplicate may repeat.

    def with_text(self, kernel: Kernel) -> EvaluationSummary | None:
        self._refresh()
        for other in reversed(self._texts.like(kernel)):
            if (verdict := self._judged.get(other)) and verdict.outcome is not Outcome.DUPLICATE:
                return verdict
        return None

    def with_code(self, code: str) -> EvaluationSummary | None:
        self._refresh()
        return self._originals.with_code(code)

    # Reading new records.

    def _refresh(self) -> None:
        with uncollected():
            self._read_new()

    def _read_new(self) -> None:
        """Read newly appended records, kernels last, so that every verdict's kernel is known."""
        verdicts = self._new_verdicts()
        proposals = self.store.find(ProposalSummary, self.op, after=self._read[1])
        self._read[1] = max((one.number for one in proposals), default=self._read[1])
        shipped = {one.kernel_id for one in proposals if one.shipped}
        for kernel in self._new_kernels():
            self._all[kernel.id] = kernel.family
            self._texts.add(kernel)
            if kernel.id in shipped:
                self._dormant[kernel.id] = []
            elif not self.scope.fresh:
                self._count(kernel.id)
        for proposal in proposals:
            if proposal.shipped and proposal.kernel_id in self._dormant:
                self._dormant[proposal.kernel_id].append(proposal)
            else:
                self._wake(proposal.kernel_id)
                self._take_proposal(proposal)
        called = (self._asked | {verdict.kernel_id for verdict in verdicts}) & self._dormant.keys()
        for kernel_id in sorted(called - self.scope.excluded):
            self._wake(kernel_id)
        for verdict in verdicts:
            self._newest[verdict.workloads] = verdict
            self._take_verdict(verdict)

    def _new_verdicts(self) -> list[EvaluationSummary]:
        """Return the new verdicts, oldest first, each with the part of its log that gives the reason."""
        found: list[EvaluationSummary] = []
        while new := self.store.find(
            EvaluationSummary, self.op, device=self.device.key, after=self._read[2], oldest=READ_AT_ONCE
        ):
            self._read[2] = max(one.number for one in new)
            found += [one._replace(log=shortened(one.log)) if one.log else one for one in new]
        return sorted(found, key=attrgetter("created", "number"))

    def _new_kernels(self) -> Iterator[KernelSummary]:
        while new := self.store.find(KernelSummary, self.op, after=self._read[0], oldest=READ_AT_ONCE):
            self._read[0] = new[-1].number
            yield from new

    def _wake(self, kernel_id: str) -> None:
        """Let a shipped kernel count from now on."""
        if kernel_id in self._dormant:
            proposals = self._dormant.pop(kernel_id)
            if not self.scope.fresh:
                self._count(kernel_id)
            for proposal in proposals:
                self._take_proposal(proposal)

    def _count(self, kernel_id: str) -> None:
        if kernel_id not in self._families:
            self._families[kernel_id] = self._all[kernel_id]
            if kernel_id not in self._judged:
                self._waiting[kernel_id] = None

    def _take_proposal(self, proposal: ProposalSummary) -> None:
        if (self.scope.fresh and proposal.run != self.scope.run) or proposal.run == SHIPPED:
            return  # a shipped kernel's original proposer is not part of this archive's history
        kernel_id, late = proposal.kernel_id, False
        if proposal.run and proposal.run == self.scope.run:
            self._asked.add(kernel_id)
        if self._proposals and proposal.created < self._proposals[-1].created:
            insort(self._proposals, proposal, key=lambda one: (one.created, one.number))
            late = True
        else:
            self._proposals.append(proposal)
        self._used.update(proposal.parents)
        if proposal.operator == "repair":
            self._repairs.append(proposal)
        if kernel_id and kernel_id not in self._proposed:
            self._proposed.add(kernel_id)
            self._count(kernel_id)
            if kernel_id in self._judged:
                late, self._contenders, self._ranking = True, None, None
        if late:
            self._past = None
            self._tried.forget()
        else:
            self._unheard.append(proposal)

    def _take_verdict(self, verdict: EvaluationSummary) -> None:
        held = self._judged.get(verdict.kernel_id)
        if held and verdict.created < held.created:
            return
        self._judged[verdict.kernel_id] = verdict
        self._waiting.pop(verdict.kernel_id, None)
        self._alive = None
        if held or not self._originals.add(verdict):
            self._originals.forget()
            self._past = None
            self._tried.forget()
        if held:
            self._ranking = None
        elif self._ranking is not None and verdict.kernel_id in self._families:
            self._ranking.add([verdict])
        if held or verdict.confirmed:
            self._contenders = None
        elif self._contenders is not None and self._counts(verdict.kernel_id):
            self._contenders[verdict.kernel_id] = verdict
        if verdict.kernel_id in self._families:
            self._unheard.append(verdict)
            self._tried.add(verdict, self._families[verdict.kernel_id], self._originals.credited)

    def _told_of(self, kernel_id: str) -> EvaluationSummary | None:
        return self._originals.credited(self._judged[kernel_id]) if kernel_id in self._judged else None

    def _counts(self, kernel_id: str) -> bool:
        return kernel_id in self._families if self.scope.fresh else kernel_id not in self._dormant


def judged_on_gpus(store: Store, op: str, device: DeviceInfo) -> frozenset[str]:
    """Return the kernels that GPUs have judged, for a device without GPU times; none for a GPU."""
    if policy_of(device.kind).times_are_gpu_times:
        return frozenset()
    keys = [key for key in store.count(EvaluationSummary, "device", op) if policy_of(kind_in(key)).times_are_gpu_times]
    return frozenset(kernel_id for key in keys for kernel_id, _ in store.find(Judged, op, device=key))
