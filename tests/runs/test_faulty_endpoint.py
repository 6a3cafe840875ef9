"""A long run with several models and endpoints, faults at every kind of question, and one model that always fails.

HTTP, loop, archive and proposer are real; only the engine is scripted, so that the run takes seconds.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import TWICE
from fake_engine import FakeEngine
from faulty_script import FAULTS, Locked, Script, always_failing
from scripted_endpoint import KEY, ScriptedEndpoint
from scripted_runs import faster_and_faster

from archive.kernel import Proposal
from archive.runs import AskedQuestion, Budget, Scope
from archive.sqlite import SqliteStore, open_archive
from evolve.loop import evolve
from evolve.proposers.llm import endpoint
from evolve.proposers.llm.endpoint import Endpoints
from evolve.proposers.llm.models import Model, Prices
from evolve.proposers.llm.proposer import LlmProposer
from evolve.search import Search
from reference_ops import catalog

pytestmark = pytest.mark.exhaustive
EVALS, TIMEOUT_SECONDS = 240, 1.5
PRICES = Prices(prompt=1.0, completion=8.0, cached=0.1)
PLAIN, WARM, TELLING, BROKEN = "plain", "warm", "telling", "broken"


@dataclass(frozen=True)
class Finished:
    """The archive of a finished run, with the scripts and servers that answered it."""

    store: SqliteStore
    scripts: tuple[Script, ...]
    endpoints: tuple[ScriptedEndpoint, ...]

    @property
    def proposals(self) -> list[Proposal]:
        return self.store.find(Proposal)

    def delivered(self) -> list[dict[str, Any]]:
        """Return every answer that was sent completely and is valid JSON."""
        texts = [text for endpoint in self.endpoints for text in endpoint.delivered]
        return [json.loads(text) for text in texts if text.endswith("}")]


def models(urls: Sequence[str]) -> tuple[Model, ...]:
    common = {"key_env": "THE_KEY", "timeout_seconds": TIMEOUT_SECONDS}
    return (
        Model(PLAIN, urls[0], usd_per_million=PRICES, **common),  # type: ignore[arg-type]
        Model(WARM, urls[0], usd_per_million=PRICES, temperature=0.7, form="edits", **common),  # type: ignore[arg-type]
        Model(TELLING, urls[1], form="whole", tells_cost=True, **common),  # type: ignore[arg-type]
        Model(BROKEN, urls[2], usd_per_million=PRICES, **common),  # type: ignore[arg-type]
    )


def finished(folder: Path, budget: Budget, *, stalls: bool = True, seed: int = 5) -> Finished:
    numbers = Locked(itertools.count(1))
    scripts = Script(numbers, stalls=stalls), Script(numbers, tells_cost=True, stalls=False)
    store = open_archive(folder / "archive.db")
    with ExitStack() as stack:
        reacting = [*(script.step for script in scripts), always_failing(numbers)]
        endpoints = [stack.enter_context(ScriptedEndpoint(reacts=reacts)) for reacts in reacting]
        proposer = LlmProposer(models([endpoint.base_url for endpoint in endpoints]), Endpoints({"THE_KEY": KEY}, 2))
        search = Search("run", catalog.load(TWICE), TWICE, seed, budget, scope=Scope("run"))
        for _ in evolve(search, (), proposer, FakeEngine(faster_and_faster), store):
            pass
    return Finished(store, scripts, tuple(endpoints))


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr(endpoint, "FIRST_SECONDS", 0.02)
        yield finished(tmp_path_factory.mktemp("faults"), Budget(evals=EVALS))


def test_the_run_spends_its_whole_budget_despite_every_fault(long_run: Finished) -> None:
    fresh = {proposal.kernel_id for proposal in long_run.proposals if proposal.kernel}
    assert len(fresh) == EVALS


def test_every_kind_of_question_had_faults_and_every_fault_occurred(long_run: Finished) -> None:
    # The order of the answers determines which model gets which question, so one rare operator may be missing.
    assert len({proposal.operator for proposal in long_run.proposals}) >= 5
    met = sum((script.faults for script in long_run.scripts), Counter[tuple[str, str]]())
    asked = Counter(kind for kind, _ in met.elements())
    for kind in (kind for kind, count in asked.items() if count >= 20):
        assert {"stall", "429", "500"} <= {name for of, name in met if of == kind}
    assert {name for _, name in met} == FAULTS


def test_every_answer_that_was_delivered_is_in_the_archive_exactly_once(long_run: Finished) -> None:
    counted = Counter(proposal.cost.prompt_tokens for proposal in long_run.proposals)
    for body in long_run.delivered():
        if "usage" in body:
            assert counted[body["usage"]["prompt_tokens"]] == 1
        else:
            text = body["choices"][0]["message"]["content"]
            assert sum(proposal.reply == text for proposal in long_run.proposals) == 1


def test_every_archived_reply_was_delivered(long_run: Finished) -> None:
    said = {body["choices"][0]["message"]["content"] for body in long_run.delivered()}
    assert {proposal.reply for proposal in long_run.proposals if proposal.reply} <= said


def test_the_tokens_spent_are_those_that_the_servers_reported(long_run: Finished) -> None:
    usages = [body["usage"] for body in long_run.delivered() if "usage" in body]
    estimated = [p.cost for p in long_run.proposals if p.reply in {t for s in long_run.scripts for t in s.uncounted}]
    spent = sum(proposal.cost.tokens for proposal in long_run.proposals) - sum(cost.tokens for cost in estimated)
    assert spent == sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
    assert all(cost.tokens for cost in estimated)


def test_the_dollars_spent_are_the_costs_of_the_answers(long_run: Finished) -> None:
    by_prompt = {proposal.cost.prompt_tokens: proposal.cost for proposal in long_run.proposals}
    for body in long_run.delivered():
        if usage := body.get("usage"):
            cost = by_prompt[usage["prompt_tokens"]]
            assert cost.usd == pytest.approx(usage.get("cost", PRICES.usd(cost)))
            assert cost.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]
            assert cost.reasoning_tokens == usage["completion_tokens_details"]["reasoning_tokens"]


def test_malformed_answers_are_recorded_as_failures_with_the_reason(long_run: Finished) -> None:
    sent = sum(
        count for script in long_run.scripts for (_, name), count in script.faults.items() if name == "malformed"
    )
    assert sent
    assert sum("not JSON" in proposal.failure for proposal in long_run.proposals) == sent


def test_the_failing_model_gets_few_questions_throughout_the_run(long_run: Finished) -> None:
    asked = [proposal.proposer == BROKEN for proposal in long_run.proposals]
    fair, half = len(asked) / 4, len(asked) // 2
    assert 0 < sum(asked) < fair / 2
    assert sum(asked[half:]) < fair / 4


def test_a_failing_model_is_reported_and_does_not_end_the_run(long_run: Finished) -> None:
    notes = [proposal.failure for proposal in long_run.proposals if proposal.proposer == BROKEN]
    assert any("has no model `broken`" in note for note in notes)


def test_a_refused_temperature_is_sent_only_until_it_is_refused(long_run: Finished) -> None:
    bodies = [recorded.body for recorded in long_run.endpoints[0].requests if recorded.body["model"] == WARM]
    with_temperature = ["temperature" in body for body in bodies]
    assert 0 < sum(with_temperature) <= 4  # requests that may be in flight before the first refusal arrives
    assert not any(with_temperature[8:])


def test_every_exchange_is_archived_unchanged(long_run: Finished) -> None:
    asked = {one.proposal_id: one.question for one in long_run.store.find(AskedQuestion)}
    assert set(asked) == {proposal.id for proposal in long_run.proposals}
    sent = {
        (body["model"], tuple((message["role"], message["content"]) for message in body["messages"]))
        for endpoint in long_run.endpoints
        for body in (recorded.body for recorded in endpoint.requests)
    }
    assert {(question.model, question.messages) for question in asked.values()} <= sent


def test_equal_calls_are_distinguished(long_run: Finished) -> None:
    calls = [proposal.call for proposal in long_run.proposals]
    assert all(calls)
    assert len(set(calls)) == len(calls)


def test_the_key_is_nowhere_in_the_archive(long_run: Finished) -> None:
    long_run.store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert KEY.encode() not in long_run.store.path.read_bytes()
    assert all(recorded.authorization == f"Bearer {KEY}" for e in long_run.endpoints for recorded in e.requests)


@pytest.mark.parametrize("budget", [Budget(tokens=400_000), Budget(usd=0.5)], ids=["tokens", "dollars"])
def test_a_limit_is_exceeded_at_most_by_the_underestimate_of_first_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: Budget
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "FIRST_SECONDS", 0.02)
    found = finished(tmp_path, budget, stalls=False)
    costs = [proposal.cost for proposal in found.proposals]
    paid = [float(cost.tokens) if budget.tokens else cost.usd for cost in costs]
    limit = budget.tokens or budget.usd or 0.0
    beyond = max(cost.prompt_tokens for cost in costs) * (1 if budget.tokens else PRICES.prompt / 1e6)
    assert limit / 2 <= sum(paid) < limit + 3 * beyond  # each of three models sends a first prompt
