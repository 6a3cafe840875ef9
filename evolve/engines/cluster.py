"""Ray cluster: the connection of this process, and the resources of each actor of an engine."""

import contextlib
import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.errors import UserError

AUTO = "auto"  # the cluster that RAY_ADDRESS names, or that runs on this machine
ACCELERATOR = "accelerator_type:"
NO_CLUSTER = "start one with `ray start --head`, or name one with --address HOST:PORT"
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Allocation:
    """The resources of each of an engine's actors, as Ray's options, and the number of actors that fit."""

    options: Mapping[str, object]
    count: int


def connect(address: str) -> tuple[Any, bool]:
    """Return the module `ray`, connected to a cluster, and whether this call has connected it."""
    try:
        import ray
    except ImportError as error:
        raise UserError("the engine `ray` needs Ray", "pip install 'evolve-kernels[ray]'") from error
    if ray.is_initialized():
        return ray, False
    if address.startswith("ray://"):
        message = f"--address {address}: Ray Client is not supported"
        raise UserError(message, "run on a node of the cluster, such as with `ray job submit -- evolve run ...`")
    if address != AUTO:
        _check_reachable(address)
    try:
        with _own_signal_handlers():
            ray.init(address=address, logging_level="error", log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        raise UserError(f"there is no Ray cluster at `{address}`: {sentence(error)}", NO_CLUSTER) from error
    # Ray also raises RuntimeError for other versions of Ray or Python
    except (RuntimeError, ValueError, OSError) as error:
        hint = "this machine must be a node of the cluster, with the same versions of Ray and Python"
        raise UserError(f"the Ray cluster at `{address}` cannot be used: {sentence(error)}", hint) from error
    return ray, True


def _check_reachable(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(f"--address {address} is not an address", "give auto, or HOST:PORT such as 10.0.0.5:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster answers at {address}: {sentence(error)}", NO_CLUSTER) from error


@contextlib.contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep this process's signal handlers: Ray installs its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def allocation_of(nodes: Sequence[Mapping[str, Any]], kind: str, gpu_type: str = "") -> Allocation:
    """Return the resources of each actor on these nodes, in Ray's description: a GPU, or some CPUs.

    Raises UserError if they have none.
    """
    if policy_of(kind).times_are_gpu_times:
        types = gpu_types(nodes)
        if not types:
            raise UserError(
                "the Ray cluster has no GPU", "`ray status` shows its resources; --device emulated runs on CPUs"
            )
        if gpu_type not in types and (gpu_type or len(types) > 1):
            wrong = (
                f"the Ray cluster has no GPU `{gpu_type}`" if gpu_type else "the cluster's GPUs are of several types"
            )
            raise UserError(wrong, f"choose one with --gpus: {', '.join(filter(None, types))}")
        of_type = gpu_type or next(iter(types))
        label = {"resources": {f"{ACCELERATOR}{of_type}": 0.001}} if of_type else {}
        return Allocation({"num_gpus": 1, **label}, types[of_type])
    if gpu_type:
        raise UserError(f"the {kind} device runs on CPUs, got --gpus {gpu_type}", "leave out --gpus, or --device")
    cpus = [int(cpu) for node in nodes if node["Alive"] and (cpu := node["Resources"].get("CPU", 0)) >= 1]
    if not cpus:
        raise UserError("the Ray cluster has no CPUs", "`ray status` shows its resources")
    each = min(policy_of(kind).most_workers, *cpus)
    return Allocation({"num_cpus": each}, sum(cpu // each for cpu in cpus))


def default_device(nodes: Sequence[Mapping[str, Any]], wanted: Iterable[str] = ()) -> str:
    """Return the kind of a GPU if a node has one or a type is wanted, otherwise that of the device that needs none."""
    gpus = (kind for kind in choose.kinds() if policy_of(kind).times_are_gpu_times)
    return next(gpus, choose.FALLBACK) if any(wanted) or gpu_types(nodes) else choose.FALLBACK


def gpu_types(nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of GPUs of each type. The key of GPUs without a type is empty."""
    found: dict[str, int] = {}
    for node in nodes:
        has = node["Resources"]
        if node["Alive"] and (gpus := int(has.get("GPU", 0))):
            name = next((key.removeprefix(ACCELERATOR) for key in has if key.startswith(ACCELERATOR)), "")
            found[name] = found.get(name, 0) + gpus
    return found


def sentence(error: object) -> str:
    """Return the first line of an error that says what has happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
