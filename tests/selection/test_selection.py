import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import bad_kernels
import pytest
from records import CPU, GPU, confirmed, failed, kernel, passed
from records import proposal as record_of

from archive.kernel import Proposal
from archive.records import DeviceInfo, Evaluation, Outcome, Profile, Standard, Traits
from archive.runs import BEST_OF_N, EVERYTHING, Scope
from archive.sqlite import SqliteStore, merge, open_archive
from evolve.request import Left, Request
from evolve.selection import selection
from evolve.selection.selection import REPAIRS
from evolve.selection.view import OpView
from reference_ops import catalog

OP = catalog.load(str(Path(__file__).parents[1] / "samples" / "twice.py"))
FIRST, SECOND = bad_kernels.twice_kernel(note="first"), bad_kernels.twice_kernel(note="second")


def proposal(of: object = FIRST, operator: str = "seed", parents: tuple[str, ...] = ()) -> Proposal:
    return Proposal("twice", operator, "tell", of, parents=parents, created=1.0)  # type: ignore[arg-type]


def of_twice(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, op="twice", device=CPU)


def view(store: SqliteStore, scope: Scope = EVERYTHING, device: DeviceInfo = CPU) -> OpView:
    return OpView(store, "twice", device, scope)


def request(
    store: SqliteStore, wanted: int, seed: int = 1, scope: Scope = EVERYTHING, left: Left | None = None
) -> Request:
    return selection.request(view(store, scope), OP, wanted, seed=seed, left=left or Left())


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "a.db")


def test_a_kernel_that_was_never_evaluated_on_this_device_is_pending(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)))
    assert view(store).pending() == [SECOND.id]


def test_a_kernel_judged_only_on_another_device_is_pending_on_this_one(store: SqliteStore) -> None:
    store.append(proposal(), of_twice(passed(FIRST.id, w=1.0)))
    assert view(store, device=replace(CPU, name="another")).pending() == [FIRST.id]


def of_gpu(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, op="twice", device=GPU)


def test_a_kernel_that_a_gpu_has_judged_is_not_pending_on_a_device_without_gpu_times(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_gpu(passed(FIRST.id, w=1.0)))
    assert view(store).pending() == [SECOND.id]
    assert view(store, device=replace(GPU, name="another GPU")).pending() == [FIRST.id, SECOND.id]
    assert view(store).pending(every=True) == [FIRST.id, SECOND.id]


def test_a_kernel_that_a_run_starts_from_or_proposes_is_pending_even_if_a_gpu_has_judged_it(store: SqliteStore) -> None:
    store.append(proposal(), replace(proposal(SECOND), run="run"), of_gpu(passed(FIRST.id, w=1.0)))
    store.append(of_gpu(passed(SECOND.id, w=1.0)))
    seen = view(store, Scope("run"))
    assert seen.pending() == [SECOND.id]
    seen.ask_for([FIRST.id])
    assert seen.pending() == [FIRST.id, SECOND.id]


def test_champions_are_listed_as_unconfirmed_until_they_are_confirmed(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0, v=9.0)))
    store.append(of_twice(passed(SECOND.id, w=1.5, v=2.0)))
    assert {kernel.id for kernel in view(store).unconfirmed()} == {FIRST.id, SECOND.id}
    store.append(of_twice(confirmed(FIRST.id, created=2.0, w=1.0, v=9.0)))
    assert [kernel.id for kernel in view(store).unconfirmed()] == [SECOND.id]


def test_a_champion_that_another_archive_confirmed_is_confirmed_here_once(store: SqliteStore, tmp_path: Path) -> None:
    other = open_archive(tmp_path / "other.db")
    other.append(proposal(), of_twice(confirmed(FIRST.id, created=2.0, w=1.0)))
    merge(store, other)
    assert [kernel.id for kernel in view(store).unconfirmed()] == [FIRST.id]
    # the clock of this machine is behind that of the other one
    store.append(of_twice(confirmed(FIRST.id, created=1.0, w=1.0)))
    assert view(store).unconfirmed() == []


def test_a_kernel_that_leads_at_no_workload_is_not_confirmed(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)), of_twice(passed(SECOND.id, w=2.0)))
    assert [kernel.id for kernel in view(store).unconfirmed()] == [FIRST.id]


def test_a_kernel_hardly_faster_than_a_confirmed_champion_is_not_confirmed(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND))
    store.append(of_twice(confirmed(FIRST.id, w=1.0)), of_twice(passed(SECOND.id, w=0.95)))
    assert view(store).unconfirmed() == []


def test_a_champion_that_failed_its_confirmation_is_replaced_by_the_next(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)), of_twice(passed(SECOND.id, w=2.0)))
    store.append(of_twice(failed(FIRST.id, created=2.0)))
    assert [kernel.id for kernel in view(store).unconfirmed()] == [SECOND.id]


def test_the_time_to_beat_is_that_of_the_champion(store: SqliteStore) -> None:
    store.append(of_twice(passed(FIRST.id, w=1.0, v=9.0)), of_twice(passed(SECOND.id, w=1.5, v=2.0)))
    assert dict(view(store).bars()) == {"w": 1.0, "v": 2.0}


def test_a_request_lists_failures_until_a_repair_is_proposed(store: SqliteStore) -> None:
    store.append(proposal(), of_twice(failed(FIRST.id)))
    assert [failure.kernel.id for failure in request(store, 4, seed=1).failures] == [FIRST.id]
    store.append(proposal(SECOND, "repair", (FIRST.id,)))
    assert request(store, 4, seed=1).failures == ()


def test_a_request_lists_every_kernel_and_draws_its_parents_from_the_survivors(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=1.0)), of_twice(failed(SECOND.id)))
    asked = request(store, 3, seed=1)
    assert asked.known == {FIRST.id, SECOND.id}
    assert [parent.kernel.id for parent in asked.parents] == [FIRST.id] * 3


def test_the_same_archive_and_seed_give_the_same_request(store: SqliteStore) -> None:
    store.append(proposal(), of_twice(passed(FIRST.id, w=1.0)))
    assert request(store, 4, seed=1) == request(store, 4, seed=1)
    assert request(store, 4, seed=1).seed != request(store, 4, seed=2).seed


def chain_of_repairs(store: SqliteStore, length: int) -> str:
    """Add a kernel that failed and its repairs, all of which failed too; return the id of the last one."""
    kernels = [bad_kernels.twice_kernel(note=f"try {number}") for number in range(length + 1)]
    store.append(proposal(kernels[0]), of_twice(failed(kernels[0].id)))
    for before, after in pairwise(kernels):
        store.append(proposal(after, "repair", (before.id,)), of_twice(failed(after.id)))
    return kernels[-1].id


def test_a_repair_that_failed_is_repaired_in_turn(store: SqliteStore) -> None:
    last = chain_of_repairs(store, REPAIRS - 1)
    assert [failure.kernel.id for failure in request(store, 4, seed=1).failures] == [last]


def test_a_kernel_is_not_repaired_again_after_several_failed_repairs(store: SqliteStore) -> None:
    chain_of_repairs(store, REPAIRS)
    assert request(store, 4, seed=1).failures == ()


def test_a_setting_that_failed_needs_no_repair_if_another_setting_passed(store: SqliteStore) -> None:
    other = FIRST.with_knobs({"THREADS": 64})
    store.append(proposal(), proposal(other, "knobs", (FIRST.id,)))
    store.append(of_twice(passed(FIRST.id, w=1.0)), of_twice(failed(other.id)))
    assert request(store, 4, seed=1).failures == ()


def two_runs(store: SqliteStore) -> None:
    store.append(replace(proposal(), run="one"), replace(proposal(SECOND), run="two"))
    store.append(of_twice(passed(FIRST.id, w=1.0)), of_twice(passed(SECOND.id, w=2.0)))


def test_a_fresh_run_considers_only_its_own_proposals(store: SqliteStore) -> None:
    two_runs(store)
    asked = request(store, 4, seed=1, scope=Scope("two", fresh=True))
    assert {candidate.kernel_id for candidate in (*asked.population, *asked.parents, *asked.tried)} == {SECOND.id}


def test_the_control_arm_gets_only_its_remaining_budget(store: SqliteStore) -> None:
    two_runs(store)
    asked = request(store, 4, seed=1, scope=Scope("two", BEST_OF_N), left=Left(tokens=7))
    assert (asked.population, asked.parents, asked.failures, asked.tried, asked.lessons) == ((), (), (), (), ())
    assert asked.left == Left(tokens=7)


def test_every_kernel_with_a_verdict_is_listed_as_tried_oldest_first(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(failed(SECOND.id, created=1.0)))
    store.append(of_twice(passed(FIRST.id, created=2.0, w=1.0)))
    assert [candidate.kernel_id for candidate in request(store, 4, seed=1).tried] == [SECOND.id, FIRST.id]


def test_tried_kernels_are_known_without_their_texts_which_a_request_can_read(store: SqliteStore) -> None:
    tuned = kernel(1).with_knobs({"N": 3})
    store.append(*(record_of(one) for one in (kernel(1), tuned)), passed(kernel(1).id, CPU, 1.0, w=1.0))
    seen = OpView(store, "softmax", CPU)
    asked = selection.request(seen, catalog.load("softmax"), 4, seed=1)
    assert [(one.family, one.settings) for one in asked.tried] == [(kernel(1).family, kernel(1).settings)]
    store.append(passed(tuned.id, CPU, 2.0, w=2.0))
    told = selection.request(seen, catalog.load("softmax"), 4, seed=1).tried
    assert [(one.kernel_id, one.family, one.settings["N"]) for one in told] == [
        (kernel(1).id, tuned.family, 1), (tuned.id, tuned.family, 3),
    ]  # fmt: skip
    assert asked.kernels([tuned.id]) == {tuned.id: tuned}


def test_a_candidate_has_the_latest_profile_of_each_workload_on_its_device(store: SqliteStore) -> None:
    def profile(workload: str, value: float, device: str = CPU.key) -> Profile:
        return Profile(FIRST.id, "twice", device, workload, (("registers", value),), created=value)

    store.append(proposal(), of_twice(passed(FIRST.id, w=1.0)))
    store.append(profile("w", 1.0), profile("w", 2.0), profile("v", 3.0), profile("w", 9.0, "another device"))
    (candidate,) = request(store, 4, seed=1).population
    assert candidate.profiles == (profile("w", 2.0), profile("v", 3.0))


def test_the_donor_from_another_op_is_its_kernel_with_the_largest_speedup(store: SqliteStore) -> None:
    slow, fast = kernel(1), kernel(2)
    for donor, median_us in ((slow, 50.0), (fast, 10.0)):
        store.append(record_of(donor), replace(passed(donor.id, w=median_us), device=CPU))
    assert [candidate.kernel_id for candidate in request(store, 4, seed=1).donors] == [fast.id]


def test_a_reworded_copy_of_a_judged_kernel_is_not_evaluated(store: SqliteStore) -> None:
    reworded = bad_kernels.twice_kernel(note="in other words")
    new = bad_kernels.twice_kernel("if (i < n) out[i] = x[i] + x[i];")
    store.append(proposal(), of_twice(failed(FIRST.id)), proposal(reworded), proposal(new))
    agenda = selection.agenda(view(store), [reworded.id, new.id])
    (verdict,) = agenda.repeated
    assert [kernel.id for kernel in agenda.new] == [new.id]
    assert (verdict.kernel_id, verdict.outcome) == (reworded.id, Outcome.DUPLICATE)
    assert FIRST.id in verdict.log
    assert "wrong" in verdict.log


def test_the_agenda_names_the_new_settings_of_a_kernel_that_has_passed(store: SqliteStore) -> None:
    setting, another = FIRST.with_knobs({"THREADS": 64}), bad_kernels.twice_kernel("if (i < n) out[i] = x[i] + x[i];")
    store.append(proposal(), proposal(setting), proposal(another))
    assert not selection.agenda(view(store), [setting.id]).settings
    store.append(of_twice(passed(FIRST.id, w=1.0)))
    assert selection.agenda(view(store), [setting.id, another.id]).settings == {setting.id}


def test_a_kernel_that_repeats_only_a_duplicate_is_evaluated(store: SqliteStore) -> None:
    store.append(proposal(), proposal(SECOND), of_twice(replace(failed(FIRST.id), outcome=Outcome.DUPLICATE)))
    assert selection.agenda(view(store), [SECOND.id]).repeated == ()


def test_a_fresh_run_has_its_own_champions_and_times_to_beat(store: SqliteStore) -> None:
    two_runs(store)
    own = Scope("two", fresh=True)
    assert dict(view(store, own).bars()) == {"w": 2.0}
    assert [kernel.id for kernel in view(store, own).unconfirmed()] == [SECOND.id]


def test_a_duplicate_has_the_times_of_the_kernel_that_it_repeats_or_is_left_out(store: SqliteStore) -> None:
    traits = Traits("code", 16, 4, 0, 32, 256, 1, tensor_cores=False, atomics=False, occupancy=1.0)
    original = replace(of_twice(passed(FIRST.id, w=3.0)), traits=traits)
    same = replace(of_twice(failed(SECOND.id)), outcome=Outcome.DUPLICATE, traits=traits)
    third = bad_kernels.twice_kernel(note="third")
    lost = replace(of_twice(failed(third.id)), outcome=Outcome.DUPLICATE)
    store.append(proposal(), proposal(SECOND), proposal(third), original, same, lost)
    told = request(store, 4, seed=1).tried
    assert {(one.kernel_id, one.evaluation.measurements[0].median_us) for one in told} == {
        (FIRST.id, 3.0),
        (SECOND.id, 3.0),
    }


def test_a_view_includes_records_that_other_processes_add_later(store: SqliteStore) -> None:
    seen = view(store)
    assert (seen.pending(), seen.champions()) == ([], ())
    open_archive(store.path).append(proposal(), proposal(SECOND), of_twice(passed(FIRST.id, w=2.0)))
    assert seen.pending() == [SECOND.id]
    open_archive(store.path).append(of_twice(passed(SECOND.id, created=2.0, w=1.0)))
    assert dict(seen.bars()) == {"w": 1.0}
    open_archive(store.path).append(of_twice(failed(SECOND.id, created=3.0)))
    assert dict(seen.bars()) == {"w": 2.0}


def test_a_view_updated_step_by_step_equals_a_new_one(store: SqliteStore) -> None:
    rng, seen = random.Random(5), view(store)
    kernels = [FIRST.with_knobs({"THREADS": 32 * n}) for n in range(1, 9)]
    kernels += [bad_kernels.twice_kernel(note=f"{n}") for n in range(20)]
    for moment, one in enumerate(rng.sample(kernels, len(kernels)) * 2):
        parents = tuple(rng.sample([k.id for k in kernels], 1)) if rng.random() < 0.7 else ()
        store.append(replace(proposal(one, rng.choice(["improve", "repair"]), parents), created=float(moment)))
        created, times = moment + rng.choice([0.5, -1.5]), {"w": rng.uniform(1, 9), "v": rng.uniform(1, 9)}
        made = confirmed if rng.random() < 0.3 else passed
        verdict = failed(one.id, created=created) if rng.random() < 0.3 else made(one.id, CPU, created, **times)
        store.append(of_twice(verdict))
        assert dict(seen.bars()) == dict(view(store).bars())
        assert selection.request(seen, OP, 4, seed=1) == selection.request(view(store), OP, 4, seed=1)


def test_a_request_has_pytorchs_latest_times_from_evaluations_or_without_a_kernel(store: SqliteStore) -> None:
    key = OP.gpu[0].key
    store.append(Standard("twice", key, GPU, 80.0, compile_us=60.0, created=1.0))
    asked = selection.request(view(store, device=GPU), OP, 1, seed=1)
    assert asked.pytorch_us == ((key, 60.0),)
    store.append(proposal(), replace(passed(FIRST.id, GPU, **{key: 20.0}), op="twice"))
    assert selection.request(view(store, device=GPU), OP, 1, seed=1).pytorch_us == ((key, 100.0),)


def test_a_request_for_the_emulator_has_no_times_of_pytorch_and_no_lessons_from_times(store: SqliteStore) -> None:
    key = OP.workloads("emulated")[0].key
    store.append(proposal(), of_twice(passed(FIRST.id, CPU, **{key: 90.0})))
    store.append(proposal(SECOND, "improve", (FIRST.id,)), of_twice(passed(SECOND.id, CPU, **{key: 9.0})))
    assert view(store).history()[1].sentences()
    asked = request(store, 1)
    assert (asked.pytorch_us, asked.lessons) == ((), ())


def test_only_a_run_without_any_kernel_is_untried(store: SqliteStore) -> None:
    assert request(store, 2).untried
    assert not request(store, 2, scope=Scope(strategy=BEST_OF_N)).untried
    store.append(proposal())
    assert not request(store, 2).untried
    assert request(store, 2, scope=Scope(run="mine", fresh=True)).untried
