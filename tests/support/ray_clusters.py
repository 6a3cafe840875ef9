"""Ray clusters on this machine, for tests. Each node has one CPU and runs one actor; the driver's node has no actor."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from processes import descendants

pytest.importorskip("ray", reason="install the extra `ray`")


@contextmanager
def cluster(nodes: int, **resources: Any) -> Iterator["LocalCluster"]:
    """Yield a cluster with this many nodes besides the driver's."""
    made = LocalCluster(nodes, resources or {"num_cpus": 1})
    try:
        yield made
    finally:
        made.close()


class LocalCluster:
    def __init__(self, nodes: int, resources: dict[str, Any]) -> None:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._handler = signal.getsignal(signal.SIGTERM)  # each of Ray's nodes installs its own signal handler
        self._resources = resources
        # A node that is only slow, because the machine is busy, must not be mistaken for a lost one.
        patient = {"health_check_timeout_ms": 60_000}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": patient}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)
        self.nodes = [self._cluster.add_node(**resources) for _ in range(nodes)]

    def add(self, **resources: Any) -> None:
        """Add a node with these resources, by default those of the first nodes."""
        self.nodes.append(self._cluster.add_node(**(resources or self._resources)))

    def kill_one(self, rng: random.Random) -> None:
        """Kill a node at random without warning."""
        self._cluster.remove_node(self.nodes.pop(rng.randrange(len(self.nodes))), allow_graceful=False)

    def processes(self) -> set[int]:
        """Return all processes of the nodes and their descendants."""
        found = {process.process.pid for node in self.nodes for each in node.all_processes.values() for process in each}
        return found.union(*map(descendants, found))

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        signal.signal(signal.SIGTERM, self._handler)
