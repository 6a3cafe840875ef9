"""Summaries of ops from the times in an archive."""

from dataclasses import replace

import pytest
from small_op import GPU, KERNEL, OP, passed

from archive.records import DeviceInfo, Evaluation, Standard
from evolve.report.ops import OpSummary, by_headroom, device_of, mean_share, nested, summaries
from reference_ops.listing import listed

FLOAT, HALF = (workload.key for workload in OP.gpu)
OTHER = replace(GPU, name="NVIDIA H100")
CPU = DeviceInfo("emulated", "Some CPU", "sm_90a", 4, 232448)
BESIDE = passed(KERNEL).evaluation


def standard(workload: str, share: float, device: DeviceInfo = GPU, created: float = 1.0) -> Standard:
    """Return times of PyTorch, the best of which is this share of the speed of light."""
    return Standard(OP.name, workload, device, 300.0 / share, 100.0 / share, None, 100.0, created)


def summary(*records: Standard | Evaluation, device: DeviceInfo = GPU) -> OpSummary:
    alone = [one for one in records if isinstance(one, Standard)]
    beside = [one for one in records if isinstance(one, Evaluation)]
    (found,) = summaries([listed(OP, "family")], device, alone, beside)
    return found


def test_without_records_there_are_no_shares() -> None:
    found = summary()
    assert [timed.workload for timed in found.workloads] == [FLOAT, HALF]
    assert (found.pytorch, found.champion, found.to_gain) == (None, None, None)
    assert mean_share([]) is None


def test_a_share_is_a_geometric_mean_with_the_lowest_workload() -> None:
    found = summary(standard(FLOAT, 0.25), standard(HALF, 1.0)).pytorch
    assert found
    assert found.mean == pytest.approx(0.5)
    assert found.worst == pytest.approx(0.25)
    assert not found.partial


def test_a_share_based_on_some_workloads_is_partial() -> None:
    found = summary(standard(FLOAT, 0.25))
    assert found.pytorch
    assert found.pytorch.partial
    assert found.to_gain == pytest.approx(4)


def test_the_latest_times_of_the_device_count() -> None:
    found = summary(standard(FLOAT, 0.9, OTHER), standard(FLOAT, 0.2), standard(FLOAT, 0.5)).pytorch
    assert found
    assert found.mean == pytest.approx(0.5)


def test_times_of_only_pytorch_take_precedence_over_times_measured_with_a_kernel() -> None:
    timed, other = summary(BESIDE).workloads
    assert timed.standard
    assert (timed.standard.best_us, timed.alone, other.standard) == (40.25, False, None)
    assert timed.pytorch == pytest.approx(15.75 / 40.25)
    both = summary(BESIDE, standard(FLOAT, 0.5)).workloads[0]
    assert both.alone
    assert both.pytorch == pytest.approx(0.5)


def test_the_possible_speedup_is_relative_to_the_best_of_pytorch_and_the_champion() -> None:
    found = summary(BESIDE, standard(HALF, 0.5))
    assert found.champion
    assert found.champion.partial
    assert found.champion.mean == pytest.approx(15.75 / 21.5)
    assert found.to_gain == pytest.approx((21.5 / 15.75 * 2) ** 0.5)


def test_the_largest_possible_speedup_comes_first_and_ops_without_times_last() -> None:
    unknown, little = summary(), summary(standard(FLOAT, 0.9))
    much = summary(standard(FLOAT, 0.1))
    assert by_headroom([unknown, little, much]) == [much, little, unknown]


def test_the_device_is_the_latest_gpu_or_the_named_one() -> None:
    records = [standard(FLOAT, 1, GPU, 1.0), standard(FLOAT, 1, OTHER, 2.0), standard(FLOAT, 1, CPU, 3.0)]
    assert device_of(records, []) == OTHER
    assert device_of(records, [], "h200") == GPU
    assert device_of(records, [], "nvidia") == OTHER
    assert device_of(records, [], "emulated") == CPU
    assert device_of(records, [], "MI300") is None
    assert device_of(records[2:], []) is None
    longer = replace(GPU, name="NVIDIA H200 NVL")
    assert device_of([*records, standard(FLOAT, 1, longer, 9.0)], [], GPU.key) == GPU


def test_an_emulated_device_has_its_own_workloads() -> None:
    assert [timed.workload for timed in summary(device=CPU).workloads] == [one.key for one in OP.emulated]


def test_backward_ops_are_below_their_forward_op() -> None:
    def named(name: str, *backward: str) -> OpSummary:
        return OpSummary(listed(replace(OP, name=name, backward=backward), "family"), 1)

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
