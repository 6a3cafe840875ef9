"""GPUs of several types for tests of Ray clusters: the emulated device under the name of its node's type of GPU."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve.engines.cluster import ACCELERATOR
from evolve.engines.engine import Job, TakesPauses
from evolve.engines.station import Watch
from evolve.wiring import node_engine


class OfType:
    """A local engine whose device has the name of a type of GPU."""

    def __init__(self, engine: TakesPauses, gpu_type: str) -> None:
        self._engine, self._type = engine, gpu_type

    @property
    def info(self) -> DeviceInfo:
        return replace(self._engine.info, name=f"NVIDIA {self._type}")

    @property
    def unprofiled(self) -> str:
        return self._engine.unprofiled

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        for verdict in self._engine.evaluate(jobs):
            yield replace(verdict, device=self.info)

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        return self._engine.profile(kernel, op, workload)

    def close(self) -> None:
        self._engine.close()


def typed_engine(_kind: str, watch: Watch, cores: int) -> tuple[TakesPauses, int]:
    """Return an engine for this node, instead of one for its GPU."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    (node,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    (label,) = (name for name in node if name.startswith(ACCELERATOR))
    engine, depth = node_engine("emulated", watch, cores)
    return OfType(engine, label.removeprefix(ACCELERATOR)), depth


def node_with(gpu_type: str) -> dict[str, object]:
    """Return the resources of a node with a GPU, as Ray's test cluster takes them."""
    return {"num_cpus": 1, "num_gpus": 1, "resources": {f"{ACCELERATOR}{gpu_type}": 1}}
