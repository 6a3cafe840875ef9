"""What follows from an archive for the list of ops. All pure."""

from dataclasses import replace

import pytest
from small_op import GPU, KERNEL, OP, passed

from archive.records import DeviceInfo, Evaluation, Standard
from evolve.report.ops import Prospect, by_headroom, device_of, nested, prospects, shares
from reference_ops.listing import listed

FLOAT, HALF = (workload.key for workload in OP.gpu)
OTHER = replace(GPU, name="NVIDIA H100")
CPU = DeviceInfo("emulated", "Some CPU", "sm_90a", 4, 232448)
BESIDE = passed(KERNEL).evaluation


def standard(workload: str, share: float, device: DeviceInfo = GPU, created: float = 1.0) -> Standard:
    """PyTorch's best at this share of light."""
    return Standard(OP.name, workload, device, 300.0 / share, 100.0 / share, None, 100.0, created)


def prospect(*records: Standard | Evaluation, device: DeviceInfo = GPU) -> Prospect:
    alone = [one for one in records if isinstance(one, Standard)]
    beside = [one for one in records if isinstance(one, Evaluation)]
    (found,) = prospects([listed(OP, "family")], device, alone, beside)
    return found


def test_nothing_follows_from_nothing() -> None:
    found = prospect()
    assert [mark.workload for mark in found.marks] == [FLOAT, HALF]
    assert (found.pytorch, found.champion, found.to_gain) == (None, None, None)
    assert shares([]) is None


def test_shares_are_geometric_means_and_the_worst_workload() -> None:
    found = prospect(standard(FLOAT, 0.25), standard(HALF, 1.0)).pytorch
    assert found
    assert found.mean == pytest.approx(0.5)
    assert found.worst == pytest.approx(0.25)
    assert not found.partial


def test_a_share_of_only_some_workloads_says_so() -> None:
    found = prospect(standard(FLOAT, 0.25))
    assert found.pytorch
    assert found.pytorch.partial
    assert found.to_gain == pytest.approx(4)


def test_the_last_times_hold_and_those_of_other_devices_do_not() -> None:
    found = prospect(standard(FLOAT, 0.9, OTHER), standard(FLOAT, 0.2), standard(FLOAT, 0.5)).pytorch
    assert found
    assert found.mean == pytest.approx(0.5)


def test_where_pytorch_was_not_timed_alone_it_was_beside_a_kernel() -> None:
    mark, other = prospect(BESIDE).marks
    assert mark.standard
    assert (mark.standard.best_us, mark.alone, other.standard) == (40.25, False, None)
    assert mark.pytorch == pytest.approx(15.75 / 40.25)
    both = prospect(BESIDE, standard(FLOAT, 0.5)).marks[0]
    assert both.alone
    assert both.pytorch == pytest.approx(0.5)


def test_what_is_left_to_gain_is_from_the_best_of_pytorch_and_the_champion() -> None:
    found = prospect(BESIDE, standard(HALF, 0.5))
    assert found.champion
    assert found.champion.partial
    assert found.champion.mean == pytest.approx(15.75 / 21.5)
    assert found.to_gain == pytest.approx((21.5 / 15.75 * 2) ** 0.5)


def test_most_to_gain_comes_first_and_what_nobody_knows_last() -> None:
    unknown, little = prospect(), prospect(standard(FLOAT, 0.9))
    much = prospect(standard(FLOAT, 0.1))
    assert by_headroom([unknown, little, much]) == [much, little, unknown]


def test_the_device_is_the_most_recent_gpu_or_the_one_that_is_named() -> None:
    records = [standard(FLOAT, 1, GPU, 1.0), standard(FLOAT, 1, OTHER, 2.0), standard(FLOAT, 1, CPU, 3.0)]
    assert device_of(records, []) == OTHER
    assert device_of(records, [], "h200") == GPU
    assert device_of(records, [], "nvidia") == OTHER
    assert device_of(records, [], "emulated") == CPU
    assert device_of(records, [], "MI300") is None
    assert device_of(records[2:], []) is None
    longer = replace(GPU, name="NVIDIA H200 NVL")
    assert device_of([*records, standard(FLOAT, 1, longer, 9.0)], [], GPU.key) == GPU


def test_an_emulated_device_is_held_to_its_own_workloads() -> None:
    assert [mark.workload for mark in prospect(device=CPU).marks] == [one.key for one in OP.emulated]


def test_an_ops_backwards_are_below_it_where_they_are_its_own() -> None:
    def named(name: str, *backward: str) -> Prospect:
        return Prospect(listed(replace(OP, name=name, backward=backward), "family"), 1)

    found = [
        named("conv_bias", "conv_backward_data", "conv_bias_backward_bias"), named("conv_bias_backward_bias"),
        named("zeta_backward"), named("conv", "conv_backward_data", "conv_backward_weight"),
        named("conv_backward_data"),
    ]  # fmt: skip
    assert [(one.op.name, forward) for one, forward in nested(found)] == [
        ("conv", ""), ("conv_backward_data", "conv"),
        ("conv_bias", ""), ("conv_bias_backward_bias", "conv_bias"),
        ("zeta_backward", ""),
    ]  # fmt: skip
