"""The Ray engine on a cluster with two types of GPUs: a device and a population for each, in the same run."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import typed_gpus
from bad_kernels import twice_kernel
from commandline import evolve
from ray_clusters import LocalCluster, cluster
from typed_gpus import node_with, typed_engine

from archive.records import Evaluation
from archive.runs import Run
from archive.sqlite import open_archive
from evolve import wiring
from evolve.engines.engine import HasDevices, Job, devices_of
from evolve.engines.ray_engine import RayEngine
from evolve.errors import UserError

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
made_by_wiring = wiring.ray_engine
NAMES = ("NVIDIA H100", "NVIDIA H200")
pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def rooms() -> Iterator[LocalCluster]:
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(typed_gpus)  # the nodes' processes do not find the modules of tests
    with cluster(1, **node_with("H100")) as made:
        made.add(**node_with("H200"))
        yield made


def keys(engine: RayEngine) -> list[str]:
    return [device.key for device in engine.devices]


def test_each_type_is_a_device_that_gets_its_own_jobs(rooms: LocalCluster) -> None:
    kernels = [twice_kernel(note=f"number {number}") for number in range(3)]
    with closing(RayEngine("cuda", typed_engine, address=rooms.address, gpu_types=("H100", "H200"))) as engine:
        assert isinstance(engine, HasDevices)
        assert tuple(device.name for device in devices_of(engine)) == NAMES
        jobs = [Job(each, TWICE, device=key) for each in kernels for key in keys(engine)]
        found = Counter((verdict.kernel_id, verdict.device.name) for verdict in engine.evaluate(jobs))
        assert found == Counter((each.id, name) for each in kernels for name in NAMES)
        (only,) = engine.on(keys(engine)[1]).evaluate([Job(kernels[0], TWICE, confirm=True)])
        assert (only.device.name, bool(only.confirmed)) == ("NVIDIA H200", True)


def test_a_type_whose_node_was_lost_continues_on_a_new_node(rooms: LocalCluster) -> None:
    kernels = [twice_kernel(note=f"lost {number}") for number in range(4)]
    with closing(RayEngine("cuda", typed_engine, address=rooms.address, gpu_types=("H100", "H200"))) as engine:
        jobs = [Job(each, TWICE, device=key) for each in kernels for key in keys(engine)]
        found, lost = list[Evaluation](), False
        for verdict in engine.evaluate(jobs):
            found.append(verdict)
            if not lost:
                rooms.kill_one(random.Random(1))
                rooms.add(**node_with("H100"))
                rooms.add(**node_with("H200"))
                lost = True
    assert Counter((one.kernel_id, one.device.name) for one in found) == Counter(
        (each.id, name) for each in kernels for name in NAMES
    )


def test_a_run_evolves_a_population_for_each_type_and_is_resumed(
    rooms: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # "cuda" although the device is emulated: otherwise the actors would hold CPUs
    monkeypatch.setattr(wiring, "ray_engine", lambda _kind, *given: made_by_wiring("cuda", *given))
    monkeypatch.setattr(wiring, "node_engine", typed_engine)
    Path("twice.cu").write_text(twice_kernel().text)
    assert evolve(capsys, "tell", "twice.cu", TWICE)[0] == 0
    on = ("--engine", "ray", "--address", rooms.address, "--gpus", "H100,H200")
    code, output, errors = evolve(capsys, "run", TWICE, "--proposer", "offline", "--evals", "4", *on)
    assert code == 0, output + errors
    assert "over 1 op on 2 devices" in output
    assert all(f"twice on {name.removeprefix('NVIDIA ')}" in output for name in NAMES)
    with closing(open_archive(Path(".evolve/archive.db"), read_only=True)) as store:
        runs = {run.device: run for run in store.find(Run)}
        first = store.find(Evaluation, shipped=False)
    assert len(runs) == len({run.campaign for run in runs.values()}) + 1 == 2
    assert {one.device.name for one in first} == set(NAMES)
    assert sum(one.confirmed is None for one in first) == 4

    campaign = next(iter(runs.values())).campaign
    code, output, errors = evolve(capsys, "run", "--resume", campaign, "--evals", "6", *on)
    assert code == 0, output + errors
    with closing(open_archive(Path(".evolve/archive.db"), read_only=True)) as store:
        assert sum(one.confirmed is None for one in store.find(Evaluation, shipped=False)) == 6
    code, _, errors = evolve(capsys, "run", "--resume", campaign, *on[:-1], "H100")
    assert code
    assert "was started on" in errors

    told = twice_kernel(note="told to both")
    Path("told.cu").write_text(told.text)
    assert evolve(capsys, "tell", "told.cu", TWICE)[0] == 0
    code, output, errors = evolve(capsys, "evaluate", TWICE, *on)
    assert code == 0, output + errors
    with closing(open_archive(Path(".evolve/archive.db"), read_only=True)) as store:
        assert {one.device.name for one in store.find(Evaluation) if one.kernel_id == told.id} == set(NAMES)


def test_the_same_type_under_two_names_is_refused(rooms: LocalCluster) -> None:
    with closing(RayEngine("cuda", typed_engine, address=rooms.address, gpu_types=("H100", "H200"))) as engine:
        keys(engine)
        engine._groups[1].info = engine._groups[0].info
        with pytest.raises(UserError, match="H100 and H200 are the same device, NVIDIA H100"):
            _ = engine.devices
