"""Sharing of work among runs on one archive: one run judges a kernel, and the other runs wait for the verdict."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from archive.claims import Claims
from archive.kernel import Proposal
from archive.records import Evaluation
from evolve.request import Request
from evolve.selection.view import OpView

LOOK_SECONDS = 0.25  # interval at which other runs' claims are read
# the key of a wait and its reason
WAITING, OTHERS = "claims", "another process is evaluating the kernels that are left"


class Share:
    """A run's share of the work on an archive. Without claims, the run does everything itself.

    `heard` is called with a key and the reason when the run waits for others, and with an empty reason afterwards.
    """

    def __init__(self, claims: Claims | None = None, heard: Callable[[str, str], None] | None = None) -> None:
        self.claims, self._heard = claims, heard or (lambda _key, _reason: None)
        self._met = set[str]()  # kernels on which other runs were working when this run needed them

    @property
    def met(self) -> bool:
        """Whether the run has needed kernels of other runs since it last waited for them."""
        return bool(self._met)

    def free(self, view: OpView, kernels: Iterable[str]) -> list[str]:
        """Return the kernels that no other run is working on."""
        found = list(kernels)
        others = self.claims.of_others(found, view.device.key) if self.claims else frozenset()
        self._met.update(others)
        return [kernel_id for kernel_id in found if kernel_id not in others]

    def take(self, view: OpView, kernel_id: str, seen: str = "") -> bool:
        """Claim a kernel for the verdict after the one with the id `seen`, unless another run was faster."""
        if self.claims is None or self.claims.take(kernel_id, view.device.key, seen):
            return True
        self._met.add(kernel_id)
        return False

    def judged(self, view: OpView, evaluations: Iterable[Evaluation]) -> Iterator[Evaluation]:
        """Yield the evaluations with the name of the run. A claim ends when the next evaluation is requested."""
        for evaluation in evaluations:
            yield replace(evaluation, run=view.scope.run) if self.claims else evaluation
            if self.claims:
                self.claims.give_back(evaluation.kernel_id, view.device.key)

    def unproposed(self, view: OpView, request: Request, proposals: Iterable[Proposal]) -> Iterator[Proposal]:
        """Yield the proposals, except those without a model's reply that another run has made since the request."""
        if self.claims is None or view.scope.fresh:
            yield from proposals
            return
        own = set[str]()
        for proposal in proposals:
            kernel_id = proposal.kernel_id
            if not kernel_id or proposal.reply or kernel_id in request.known or kernel_id in own:
                yield proposal
            elif self.take(view, kernel_id):  # the claim is held until the proposal is archived
                if kernel_id in view.known():
                    self._met.add(kernel_id)
                else:
                    yield proposal
                self.claims.give_back(kernel_id, view.device.key)
            own.add(kernel_id)

    def others_work(self, view: OpView, deadline: float = float("inf")) -> bool:
        """Wait while other runs work on kernels that this run needs; return whether there were any."""
        met = frozenset(self._met)
        self._met.clear()
        first = self._claimed(view, met)
        if first:
            self._heard(WAITING, OTHERS)
        while first and first == self._claimed(view, met) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self._heard(WAITING, "")
        return bool(met)

    def _claimed(self, view: OpView, kernels: Collection[str]) -> frozenset[str]:
        return self.claims.of_others(kernels, view.device.key) if self.claims and kernels else frozenset()
