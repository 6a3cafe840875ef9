from dataclasses import replace
from pathlib import Path

import bad_kernels
import pytest
from records import CPU, measurement

from archive.kernel import Kernel, parse
from archive.records import Evaluation, Outcome
from evolve.proposers.offline import OfflineProposer
from evolve.proposers.proposer import Candidate, Request
from reference_ops import catalog

OP = catalog.load(str(Path(__file__).parents[1] / "samples" / "twice.py"))


def kernel(knobs: str, require: str = "", note: str = "") -> Kernel:
    text = bad_kernels.twice_kernel(note=note).text.replace("THREADS = [128, 64, 256]", knobs)
    return parse(text.replace("\n\n[knobs]", f"\nrequire = [{require}]\n\n[knobs]", 1))


def candidate(of: Kernel, median_us: float = 5.0) -> Candidate:
    times = (measurement("n=4096 float32", median_us),)
    return Candidate(of, Evaluation(of.id, "twice", CPU, Outcome.PASSED, "", times))


def request(*population: Candidate, wanted: int = 8, seed: int = 3) -> Request:
    known = frozenset(member.kernel.id for member in population)
    return Request(OP, CPU, wanted, seed, "run", population, population[:1], (), known)


def test_children_differ_from_everything_known_and_from_each_other() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]\nUNROLL = [1, 2, 4]"))
    children = list(OfflineProposer().propose(request(parent)))
    ids = {child.kernel_id for child in children}
    assert len(ids) == len(children) == 8
    assert parent.kernel.id not in ids


def test_children_differ_from_their_parent_in_knobs_alone() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]"))
    for child in OfflineProposer().propose(request(parent)):
        assert child.kernel
        assert child.kernel.source == parent.kernel.source
        assert child.kernel.with_knobs(parent.kernel.plan.settings).id == parent.kernel.id
        assert child.parents == (parent.kernel.id,)


def test_settings_that_a_requirement_or_the_hardware_forbids_are_not_offered() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 1024, 2048]", require='"THREADS != 64"'))
    offered = [
        child.kernel.plan.settings["THREADS"] for child in OfflineProposer().propose(request(parent)) if child.kernel
    ]
    assert offered == [1024]


def test_it_falls_silent_when_every_setting_was_tried() -> None:
    parent = kernel("THREADS = [32, 64]")
    everything = [candidate(parent), candidate(parent.with_knobs({"THREADS": 64}))]
    assert list(OfflineProposer().propose(request(*everything))) == []


def test_a_kernel_without_knobs_leaves_nothing_to_vary() -> None:
    plain = parse(
        bad_kernels.twice_kernel().text.replace("[knobs]\nTHREADS = [128, 64, 256]\n", "").replace("THREADS", "128")
    )
    assert list(OfflineProposer().propose(request(candidate(plain)))) == []


def test_settings_are_carried_between_kernels_that_share_knobs() -> None:
    ours = candidate(kernel("THREADS = [32, 64, 128, 256, 512]\nUNROLL = [1, 2, 4, 8]", note="ours"))
    theirs = candidate(kernel("UNROLL = [8, 1]\nTHREADS = [512, 32]\nMORE = [1, 2]", note="theirs"), 4.0)
    seen = [c for seed in range(6) for c in OfflineProposer().propose(request(ours, theirs, seed=seed))]
    crossed = [child for child in seen if child.operator == "crossover"]
    assert crossed
    for child in crossed:
        assert set(child.parents) == {ours.kernel.id, theirs.kernel.id}


def test_tuning_starts_from_the_champion_of_a_workload() -> None:
    slow = candidate(kernel("THREADS = [32, 64, 128, 256]", note="slow"), 9.0)
    fast = candidate(kernel("THREADS = [32, 64, 128, 256]", note="fast"), 1.0)
    seen = [c for seed in range(6) for c in OfflineProposer().propose(request(slow, fast, seed=seed))]
    assert {child.parents for child in seen if child.operator == "tune"} == {(fast.kernel.id,)}


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_offers_the_same(seed: int) -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]\nUNROLL = [1, 2, 4]"))
    first, second = (list(OfflineProposer().propose(request(parent, seed=seed))) for _ in range(2))
    assert [child.kernel_id for child in first] == [child.kernel_id for child in second]
    assert replace(first[0], created=0) == replace(second[0], created=0)
