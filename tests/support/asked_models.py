"""Helpers that call the LLM proposer with a scripted endpoint, over real HTTP."""

from collections.abc import Sequence

from scripted_endpoint import KEY, MODEL, ScriptedEndpoint, Step
from small_op import request

from archive.kernel import Proposal
from evolve.proposers.llm.endpoint import Endpoints
from evolve.proposers.llm.models import Model
from evolve.proposers.llm.proposer import LlmProposer


def at(base_url: str, retries: int = 0, timeout_seconds: float = 10.0) -> LlmProposer:
    model = Model(MODEL, base_url, "THE_KEY", timeout_seconds=timeout_seconds)
    return LlmProposer((model,), Endpoints({"THE_KEY": KEY}, retries))


def proposer(endpoint: ScriptedEndpoint, retries: int = 0, timeout_seconds: float = 10.0) -> LlmProposer:
    return at(endpoint.base_url, retries, timeout_seconds)


def proposals(*steps: Step, wanted: int = 1, retries: int = 0, timeout_seconds: float = 10.0) -> list[Proposal]:
    with ScriptedEndpoint(steps) as endpoint:
        return list(proposer(endpoint, retries, timeout_seconds).propose(request(wanted)))


def only(proposals: Sequence[Proposal]) -> Proposal:
    (proposal,) = proposals
    return proposal
