"""Autotuning: the first call for new sizes times the kernels that may run and PyTorch; the cache on disk keeps which
was the fastest."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from evolve.export.template.cached import keep, kept

MOST_TIMED = 8  # kernels, those measured at the nearest sizes first


@dataclass(frozen=True)
class Tuned:
    """The fastest kernel at some sizes on a device, and times in microseconds; without a kernel, PyTorch."""

    kernel: str
    kernel_us: float  # of the fastest kernel
    pytorch_us: float

    @property
    def saves_us(self) -> float:
        return max(0.0, self.pytorch_us - self.kernel_us)

    def __str__(self) -> str:
        times = f"{self.kernel_us:.1f} us for the fastest kernel and {self.pytorch_us:.1f} us for PyTorch"
        return f"autotuning measured {times}"


def timed(
    kernels: Mapping[str, Callable[[], object]],
    pytorch: Callable[[], object],
    device_us: Callable[[Callable[[], object]], float],
) -> Tuned:
    """Time calls of kernels, by their ids, and PyTorch's."""
    times = {name: device_us(call) for name, call in kernels.items()}
    fastest, pytorch_us = min(times, key=times.__getitem__), device_us(pytorch)
    return Tuned(fastest if times[fastest] < pytorch_us else "", times[fastest], pytorch_us)


def name_of(*facts: object) -> str:
    """Return the name under which the cache keeps a result that depends on these facts."""
    return f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"


def remembered(name: str) -> Tuned | None:
    """Return what the cache keeps under a name; None if that is nothing or was damaged."""
    content = kept(name)
    try:
        return None if content is None else Tuned(**json.loads(content))
    except (ValueError, TypeError):  # of another version
        return None


def remember(name: str, tuned: Tuned) -> None:
    keep(name, json.dumps(asdict(tuned)).encode())
