"""Autotuning: times on this machine decide between kernels and PyTorch, and the cache on disk stores the decision."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulated_machine import EmulatedMachine, portable, winning
from gpu_records import duel, times

from archive import kernel as genome
from evolve.export.template import cached
from evolve.export.template.dispatch import Primitive
from evolve.export.template.manifest import ExportedEntry, Shipped
from evolve.export.template.options import options
from reference_ops import catalog

SOFTMAX = catalog.load("softmax")
FIRST = portable("softmax")
SECOND = genome.parse(FIRST.text.replace('note = "', 'note = "again: '))
X = torch.randn(4, 8)


class Clock:
    """Made-up times of the timed calls, in order: those of the kernels, then PyTorch's."""

    def __init__(self, *taken: float) -> None:
        self._taken = iter(taken)
        self.calls = 0

    def __call__(self, call: Callable[[], object], device: torch.device) -> float:
        assert device == X.device
        call()
        self.calls += 1
        return next(self._taken)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path / "cache"))
    with options(autotune=True):
        yield tmp_path / "cache"


def entry(folder: Path, *, wins: bool = True) -> ExportedEntry:
    """Return an entry with two kernels. At every size the first kernel won or, without `wins`, PyTorch did."""
    kernels: list[Shipped] = []
    for kernel, median_us in ((FIRST, 20.0 if wins else 150.0), (SECOND, 30.0 if wins else 160.0)):
        (shipped,) = winning(SOFTMAX, kernel, folder).kernels
        taken = [(one, times(one.times.workload, median_us)) for one in shipped.measured]
        rows = tuple(replace(one, times=time, duel=duel(time)) for one, time in taken)
        kernels.append(replace(shipped, measured=rows))
    return ExportedEntry("", (), (), {}, tuple(kernels), ())


def softmax(folder: Path, clock: Clock, *, wins: bool = True) -> Primitive:
    return Primitive(SOFTMAX, entry(folder, wins=wins), folder, EmulatedMachine(device_us=clock))


def chosen(primitive: Primitive, x: torch.Tensor = X) -> str:
    return primitive.explain((x,), {}).kernel


def test_the_kernel_that_is_fastest_here_runs(tmp_path: Path) -> None:
    assert chosen(softmax(tmp_path, Clock(50.0, 40.0, 100.0))) == SECOND.id


def test_pytorch_runs_where_it_is_the_fastest_here(tmp_path: Path) -> None:
    found = softmax(tmp_path, Clock(50.0, 40.0, 30.0)).explain((X,), {})
    assert not found.kernel
    assert "autotuning measured 40.0 us for the fastest kernel and 30.0 us for PyTorch" in found.reason


def test_a_kernel_may_run_that_did_not_win_elsewhere(tmp_path: Path) -> None:
    assert chosen(softmax(tmp_path, Clock(50.0, 40.0, 100.0), wins=False)) == SECOND.id
    with options(autotune=False):
        assert not chosen(softmax(tmp_path, Clock(), wins=False))


def test_every_size_is_timed_once(tmp_path: Path) -> None:
    clock = Clock(50.0, 40.0, 100.0, 40.0, 50.0, 100.0)
    primitive = softmax(tmp_path, clock)
    other = torch.randn(8, 16)
    assert [chosen(primitive, x) for x in (X, other, X, other)] == [SECOND.id, FIRST.id] * 2
    assert clock.calls == 6


def test_another_process_reads_the_choice_from_the_cache(tmp_path: Path, cache: Path) -> None:
    chosen(softmax(tmp_path, Clock(50.0, 40.0, 100.0)))
    assert len(list(cache.glob("*.json"))) == 1
    assert chosen(softmax(tmp_path, Clock())) == SECOND.id


def test_another_driver_or_version_times_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(softmax(tmp_path, Clock(50.0, 40.0, 100.0)))
    monkeypatch.setattr(EmulatedMachine, "described", lambda _self, _device: "another driver")
    assert chosen(softmax(tmp_path, Clock(40.0, 50.0, 100.0))) == FIRST.id


@pytest.mark.parametrize("damaged", [b"", b"x" * 100])
def test_a_damaged_entry_of_the_cache_is_measured_again(tmp_path: Path, cache: Path, damaged: bytes) -> None:
    chosen(softmax(tmp_path, Clock(50.0, 40.0, 100.0)))
    next(cache.glob("*.json")).write_bytes(damaged)
    assert chosen(softmax(tmp_path, Clock(40.0, 50.0, 100.0))) == FIRST.id


def test_a_kernel_that_the_package_no_longer_has_is_not_chosen(tmp_path: Path, cache: Path) -> None:
    chosen(softmax(tmp_path, Clock(50.0, 40.0, 100.0)))
    name = next(cache.glob("*.json")).name
    cached.keep(name, b'{"kernel": "gone", "kernel_us": 1.0, "pytorch_us": 2.0}')
    assert chosen(softmax(tmp_path, Clock(40.0, 50.0, 100.0))) == FIRST.id


def test_options_that_pin_or_forbid_kernels_stay_valid(tmp_path: Path) -> None:
    with options(pin={"softmax": FIRST.id}):
        assert chosen(softmax(tmp_path, Clock())) == FIRST.id
    with options(allow=()):
        assert not chosen(softmax(tmp_path, Clock()))


def test_results_are_right_after_tuning(tmp_path: Path) -> None:
    (out,) = softmax(tmp_path, Clock(50.0, 40.0, 100.0))((X,), {})
    torch.testing.assert_close(out, torch.softmax(X, -1))
