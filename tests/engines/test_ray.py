"""The Ray engine on clusters of this machine: actors and nodes that are lost, and explained errors."""

import importlib
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bad_kernels
import pytest
from bad_kernels import twice_kernel
from command import run, start
from fake_engine import FakeEngine
from processes import alive, all_gone
from ray_clusters import LocalCluster, cluster

from archive.kernel import Kernel
from archive.records import Evaluation, Outcome
from archive.sqlite import open_archive
from evolve import wiring
from evolve.engines import ray_actors, ray_engine
from evolve.engines.cluster import allocation_of, default_device
from evolve.engines.engine import Job
from evolve.engines.ray_engine import RayEngine
from evolve.engines.station import Versions
from evolve.errors import UserError

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
HALF = "if (i < n / 2) out[i] = x_t(2.0f * float(x[i]));"


def kernel(number: int) -> Kernel:
    """Return one of many kernels, every fifth of which is wrong."""
    return twice_kernel(HALF, f"wrong {number}") if number % 5 == 4 else twice_kernel(note=f"right {number}")


def check_complete(given: list[Kernel], verdicts: list[Evaluation]) -> None:
    """Check that each kernel has exactly one verdict, the right one."""
    assert Counter(verdict.kernel_id for verdict in verdicts) == Counter(each.id for each in given)
    right = {each.id: Outcome.WRONG if each.plan.note.startswith("wrong") else Outcome.PASSED for each in given}
    assert {verdict.kernel_id: verdict.outcome for verdict in verdicts} == right


@pytest.mark.exhaustive
@pytest.mark.parametrize("nodes", [2, 4])
def test_nothing_is_lost_or_counted_twice_when_nodes_are_killed(nodes: int, request: pytest.FixtureRequest) -> None:
    """Nodes are killed at random moments and replaced; `--kills 20` kills more of them."""
    kills, rng = request.config.getoption("--kills"), random.Random(nodes)
    given, verdicts, processes = list[Kernel](), list[Evaluation](), set[int]()

    def jobs() -> Iterator[Job]:
        while kills or len(given) < 10:
            given.append(kernel(len(given)))
            yield Job(given[-1], TWICE)

    with cluster(nodes) as rooms:
        engine = wiring.ray_engine("emulated", address=rooms.address)
        try:
            due = time.monotonic()
            for verdict in engine.evaluate(jobs()):
                verdicts.append(verdict)
                if kills and time.monotonic() > due:
                    processes |= rooms.processes()
                    rooms.kill_one(rng)
                    rooms.add()
                    kills, due = kills - 1, time.monotonic() + rng.uniform(0.2, 4.0)
            processes |= rooms.processes()
        finally:
            engine.close()
        check_complete(given, verdicts)
    assert all_gone(processes, 60), [pid for pid in processes if alive(pid)]


def workers(rooms: LocalCluster) -> set[int]:
    """Return the processes on the nodes that use a device or fork processes that do."""
    return {pid for pid in rooms.processes() if "evolve.engines.fork_server" in command_line(pid)}


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def rooms() -> Iterator[LocalCluster]:
    with cluster(1) as made:
        yield made


@pytest.fixture
def engine(rooms: LocalCluster) -> Iterator[RayEngine]:
    made = wiring.ray_engine("emulated", address=rooms.address)
    yield made
    made.close()


@pytest.mark.exhaustive
def test_an_actor_that_dies_leaves_no_worker_and_its_jobs_are_done_again(
    engine: RayEngine, rooms: LocalCluster
) -> None:
    given = [kernel(number) for number in range(5)]
    verdicts = engine.evaluate([Job(each, TWICE) for each in given])
    first = next(verdicts)
    seen = workers(rooms)
    engine._ray.kill(next(iter(engine._slots())).actor)
    check_complete(given, [first, *verdicts])
    assert seen
    assert all_gone(seen)


@pytest.mark.exhaustive
def test_a_kernel_whose_actors_are_lost_repeatedly_gets_a_verdict(
    rooms: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actors, "MOST_LOSSES", 1)
    bad, good = twice_kernel(note="bad"), twice_kernel(note="good")

    def watch(subject: str, phase: str) -> None:
        if subject == bad.id and phase != "waiting":
            lossy._ray.kill(next(iter(lossy._slots())).actor)

    lossy = wiring.ray_engine("emulated", watch, rooms.address)
    try:
        found = {verdict.kernel_id: verdict for verdict in lossy.evaluate([Job(bad, TWICE), Job(good, TWICE)])}
    finally:
        lossy.close()
    assert (found[bad.id].outcome, found[good.id].outcome) == (Outcome.CRASHED, Outcome.PASSED)
    assert "2 actors were lost with it" in found[bad.id].log


@pytest.mark.exhaustive
def test_a_node_with_another_version_is_named(rooms: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "own_versions", lambda: Versions("of another commit", "2.0", "9.9"))
    engine = wiring.ray_engine("emulated", address=rooms.address)
    try:
        with pytest.raises(UserError, match=r"started with 9\.9 .* \(on the node "):
            _ = engine.info
    finally:
        engine.close()


class Unreadable:
    """A value that cannot be read without a module, such as this package on a node that lacks it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return importlib.import_module, ("evolve_is_not_here",)

    def __call__(self, *_given: object) -> tuple[FakeEngine, int]:
        raise AssertionError


@pytest.mark.exhaustive
def test_a_node_without_the_package_ends_the_run_at_once(rooms: LocalCluster) -> None:
    engine = RayEngine("emulated", Unreadable(), address=rooms.address)
    try:
        with pytest.raises(UserError, match="No module named 'evolve_is_not_here'") as caught:
            _ = engine.info
    finally:
        engine.close()
    assert "on all nodes" in caught.value.hint


@pytest.mark.exhaustive
def test_a_cluster_without_gpus_cannot_hold_a_gpu(rooms: LocalCluster) -> None:
    with pytest.raises(UserError, match="the Ray cluster has no GPU"):
        wiring.ray_engine("cuda", address=rooms.address)


@pytest.mark.exhaustive
def test_a_run_that_is_killed_leaves_no_worker_and_continues(rooms: LocalCluster, tmp_path: Path) -> None:
    archive = tmp_path / ".evolve" / "archive.db"
    (tmp_path / "twice.cu").write_text(twice_kernel().text)
    assert run(tmp_path, "tell", "twice.cu", TWICE)[0] == 0
    words = ("run", TWICE, "--engine", "ray", "--address", rooms.address, "--proposer", "offline", "--evals", "3")
    process = start(tmp_path, *words)
    while not open_archive(archive).find(Evaluation, shipped=False):
        assert process.poll() is None
        time.sleep(0.1)
    seen = workers(rooms)
    process.kill()
    process.wait()
    assert seen
    assert all_gone(seen)
    code, output = run(tmp_path, *words)
    assert code == 0, output
    first = [each.kernel_id for each in open_archive(archive).find(Evaluation, shipped=False) if not each.confirmed]
    assert len(first) == len(set(first)) >= 3
    assert all_gone(workers(rooms))


def node(**resources: float) -> dict[str, Any]:
    return {"Alive": True, "Resources": {name.replace("_of_", "accelerator_type:"): n for name, n in resources.items()}}


def test_each_gpu_of_the_type_gets_an_actor() -> None:
    nodes = [node(GPU=8, CPU=64, _of_H100=1), node(GPU=4, CPU=64, _of_H200=1), node(CPU=64)]
    share = allocation_of(nodes, "cuda", "H200")
    assert (share.count, share.options) == (4, {"num_gpus": 1, "resources": {"accelerator_type:H200": 0.001}})


def test_a_type_must_be_named_where_there_are_several() -> None:
    nodes = [node(GPU=8, _of_H100=1), node(GPU=4, _of_H200=1)]
    with pytest.raises(UserError, match="several types") as caught:
        allocation_of(nodes, "cuda")
    assert "H100, H200" in caught.value.hint
    with pytest.raises(UserError, match="has no GPU `A100`"):
        allocation_of(nodes, "cuda", "A100")


def test_a_wanted_type_is_missing_where_there_are_no_gpus() -> None:
    nodes = [node(CPU=9)]
    assert (default_device(nodes), default_device(nodes, ("",))) == ("emulated", "emulated")
    assert default_device(nodes, ("H100",)) == "cuda"
    with pytest.raises(UserError, match="the Ray cluster has no GPU"):
        allocation_of(nodes, "cuda", "H100")


def test_lost_nodes_do_not_count() -> None:
    lost = {**node(GPU=8, _of_H100=1), "Alive": False}
    assert allocation_of([lost, node(GPU=1, _of_H100=1)], "cuda").count == 1


def test_without_gpus_an_actor_has_as_many_cpus_as_the_device_has_workers() -> None:
    share = allocation_of([node(CPU=9), node(CPU=4), node()], "emulated")
    assert (share.count, share.options) == (3, {"num_cpus": 4})
    with pytest.raises(UserError, match="no CPUs"):
        allocation_of([node()], "emulated")
    with pytest.raises(UserError, match="runs on CPUs, got --gpus H100"):
        allocation_of([node(CPU=9)], "emulated", "H100")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "no Ray cluster answers at 127.0.0.1:9"),
        ("somewhere", "is not an address"),
        ("ray://127.0.0.1:10001", "Ray Client is not supported"),
    ],
)
def test_an_address_without_a_cluster_is_named(address: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        wiring.ray_engine("emulated", address=address)
    assert caught.value.hint


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="needs Ray") as caught:
        wiring.ray_engine("emulated")
    assert "evolve-kernels[ray]" in caught.value.hint


def test_wrong_kernels_of_these_tests_are_wrong() -> None:
    assert HALF in bad_kernels.HALF_WRITTEN.source
