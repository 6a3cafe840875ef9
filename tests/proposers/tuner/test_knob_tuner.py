"""Offline proposer: the settings that it proposes, given kernels with their times."""

from dataclasses import replace
from pathlib import Path

import bad_kernels
from records import CPU, measurement

from archive.kernel import Kernel, parse
from archive.records import Evaluation, Outcome
from evolve.proposers.tuner.proposer import OfflineProposer
from evolve.request import Candidate, Request
from reference_ops import catalog

OP = catalog.load(str(Path(__file__).parents[2] / "samples" / "twice.py"))


def kernel(knobs: str, require: str = "", note: str = "") -> Kernel:
    text = bad_kernels.twice_kernel(note=note).text.replace("THREADS = [128, 64, 256]", knobs)
    text += "// UNROLL, MORE: what the code names may change the program\n"
    return parse(text.replace("\n\n[knobs]", f"\nrequire = [{require}]\n\n[knobs]", 1))


def candidate(of: Kernel, median_us: float = 5.0) -> Candidate:
    times = (measurement("n=4096 float32", median_us),)
    return Candidate(of, Evaluation(of.id, "twice", CPU, Outcome.PASSED, "", times))


def request(*population: Candidate, wanted: int = 8, seed: int = 3) -> Request:
    known = frozenset(member.kernel.id for member in population)
    return Request(OP, CPU, wanted, seed, "run", population, population[:1], (), known)


def offered(asked: Request) -> list[dict[str, int]]:
    return [child.kernel.plan.settings for child in OfflineProposer().propose(asked) if child.kernel]


def measured(of: Kernel, **times: float) -> Candidate:
    """Return a candidate with these times, one per dtype, at the only size of the op."""
    measurements = tuple(measurement(f"n=4096 {dtype}", us) for dtype, us in times.items())
    return Candidate(of, Evaluation(of.id, "twice", CPU, Outcome.PASSED, "", measurements))


def failed(of: Kernel) -> Candidate:
    return Candidate(of, Evaluation(of.id, "twice", CPU, Outcome.CRASHED, "it crashed"))


def after(*tried: Candidate, wanted: int = 8, seed: int = 3) -> Request:
    """Return the request that follows when all these candidates have been evaluated."""
    return replace(request(*tried, wanted=wanted, seed=seed), tried=tried)


def test_children_differ_from_everything_known_and_from_each_other() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]\nUNROLL = [1, 2, 4]"))
    children = list(OfflineProposer().propose(request(parent)))
    ids = {child.kernel_id for child in children}
    assert len(ids) == len(children) > 1
    assert parent.kernel.id not in ids


def test_the_wanted_number_of_settings_is_proposed() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]\nUNROLL = [1, 2, 4]"))
    for wanted in range(4):
        assert len(offered(request(parent, wanted=wanted))) == wanted


def test_children_differ_from_their_parent_only_in_their_knobs() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]"))
    for child in OfflineProposer().propose(request(parent)):
        assert child.kernel
        assert child.kernel.source == parent.kernel.source
        assert child.kernel.with_knobs(parent.kernel.plan.settings).id == parent.kernel.id
        assert child.parents == (parent.kernel.id,)


def test_a_kernel_with_its_values_in_another_order_counts_as_tried() -> None:
    written = candidate(kernel("THREADS = [128, 64, 32]"))
    other = candidate(kernel("THREADS = [64, 32, 128]"))
    assert offered(after(written, other)) == [{"THREADS": 32}]


def test_a_setting_that_waits_for_its_evaluation_is_not_proposed_again() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128]"))
    waiting = parent.kernel.with_knobs({"THREADS": 64})
    asked = replace(after(parent), known=frozenset({parent.kernel.id, waiting.id}))
    assert offered(asked) == [{"THREADS": 128}]


def test_only_one_of_the_settings_that_compile_to_the_same_program_is_proposed() -> None:
    text = bad_kernels.twice_kernel().text.replace("THREADS = [128, 64, 256]", "THREADS = [128]\nLEAST = [1, 2, 900]")
    same = parse(text.replace('"ceil_div(n, THREADS)"', '"ceil_div(n, THREADS) + LEAST // 500"'))
    assert offered(after(candidate(same))) == [{"THREADS": 128, "LEAST": 900}]


def test_illegal_settings_are_not_proposed() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 1024, 2048]", require='"THREADS != 64"'))
    assert offered(request(parent)) == [{"THREADS": 1024}]


def test_nothing_is_proposed_once_every_setting_has_been_tried() -> None:
    parent = kernel("THREADS = [32, 64]")
    everything = [candidate(parent), candidate(parent.with_knobs({"THREADS": 64}))]
    assert list(OfflineProposer().propose(request(*everything))) == []


def test_a_kernel_without_knobs_is_not_varied() -> None:
    plain = parse(
        bad_kernels.twice_kernel().text.replace("[knobs]\nTHREADS = [128, 64, 256]\n", "").replace("THREADS", "128")
    )
    assert list(OfflineProposer().propose(request(candidate(plain)))) == []


def test_a_crossover_transfers_settings_between_families_that_share_knobs() -> None:
    ours = candidate(kernel("THREADS = [32, 64, 128, 256, 512]\nUNROLL = [1, 2, 4, 8]", note="ours"))
    theirs = candidate(kernel("UNROLL = [8, 1]\nTHREADS = [512, 32]\nMORE = [1, 2]", note="theirs"), 4.0)
    crossed = [c for c in OfflineProposer().propose(after(ours, theirs)) if c.operator == "crossover" and c.kernel]
    assert {"UNROLL": 8, "THREADS": 512} in [child.kernel.plan.settings for child in crossed if child.kernel]
    assert all(set(child.parents) == {ours.kernel.id, theirs.kernel.id} for child in crossed)


def test_the_first_settings_of_a_new_family_are_spread_over_its_space() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]\nUNROLL = [1, 2, 4, 8]"))
    first = [child for child in OfflineProposer().propose(after(parent)) if child.kernel][:3]
    assert {child.operator for child in first} == {"knobs"}
    for name in ("THREADS", "UNROLL"):
        assert len({child.kernel.plan.settings[name] for child in first if child.kernel}) == 3


WIDE = kernel("THREADS = [32, 64, 128, 256, 512, 1024]\nUNROLL = [1, 2, 4, 8, 16, 32]")


def at(threads: int, unroll: int) -> Kernel:
    return WIDE.with_knobs({"THREADS": threads, "UNROLL": unroll})


def test_tuning_moves_towards_faster_settings() -> None:
    tried = [at(1024, 32), at(32, 1), at(64, 16), at(256, 4), at(512, 2), at(128, 8)]
    times = [measured(k, float32=1e5 / k.plan.settings["THREADS"] * k.plan.settings["UNROLL"]) for k in tried]
    children = list(OfflineProposer().propose(after(*times)))
    assert {child.operator for child in children} == {"tune"}
    settings = [child.kernel.plan.settings for child in children if child.kernel]
    assert min(own["THREADS"] / own["UNROLL"] for own in settings) >= 128  # the best kernel so far has a ratio of 256


def test_settings_are_proposed_for_each_of_two_workloads_with_opposite_optima() -> None:
    tried = [at(1024, 32), at(32, 1), at(64, 16), at(256, 4), at(512, 2), at(128, 8)]
    times = [
        measured(k, float32=9e4 / k.plan.settings["THREADS"], bfloat16=9.0 * k.plan.settings["THREADS"]) for k in tried
    ]
    threads = {settings["THREADS"] for seed in range(3) for settings in offered(after(*times, seed=seed))}
    assert threads >= {32, 1024}


def test_a_knob_value_that_failed_is_avoided_even_where_it_is_most_promising() -> None:
    passing = [at(128, 1), at(512, 4), at(128, 16), at(256, 8)]
    broken = [failed(at(1024, 1)), failed(at(1024, 4)), failed(at(1024, 32))]
    times = [measured(k, float32=900 - k.plan.settings["THREADS"] / 4) for k in passing]
    assert [settings["THREADS"] for settings in offered(after(*times, wanted=2))] == [1024, 1024]
    assert 1024 not in [settings["THREADS"] for settings in offered(after(*times, *broken, wanted=2))]


def test_a_family_that_never_passed_is_not_tuned() -> None:
    assert offered(after(failed(at(128, 1)))) == []


def test_a_family_far_behind_the_champion_is_not_explored() -> None:
    slow = [candidate(kernel("THREADS = [32, 64, 128, 256]", note="slow"), 9000.0)]
    fast = [measured(k, float32=90.0 + i) for i, k in enumerate((at(32, 1), at(64, 16), at(256, 4), at(512, 2)))]
    children = [child.kernel for child in OfflineProposer().propose(after(*slow, *fast, wanted=4)) if child.kernel]
    assert {child.family for child in children} == {WIDE.family}


def test_a_new_family_close_to_the_champion_is_explored_beside_an_old_one() -> None:
    new = candidate(kernel("THREADS = [32, 64, 128, 256]", note="new"), 100.0)
    old = [measured(k, float32=90.0 + i) for i, k in enumerate((at(32, 1), at(64, 16), at(256, 4), at(512, 2)))]
    children = [child.kernel for child in OfflineProposer().propose(after(*old, new)) if child.kernel]
    assert {child.family for child in children} == {WIDE.family, new.kernel.family}


def test_the_same_seed_gives_the_same_proposals() -> None:
    parent = candidate(kernel("THREADS = [32, 64, 128, 256]\nUNROLL = [1, 2, 4]"))
    for seed in (1, 2):
        first, second = (list(OfflineProposer().propose(request(parent, seed=seed))) for _ in range(2))
        assert [child.kernel_id for child in first] == [child.kernel_id for child in second]
        assert replace(first[0], created=0) == replace(second[0], created=0)
