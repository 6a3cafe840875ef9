"""Times of the baselines at one workload, and measurements that are completed with them.

This module does not import torch.
"""

from dataclasses import dataclass, replace

from archive.records import Measurement, Standard
from evolve.devices.choose import AUTOTUNE, COMPILE, EAGER

STEADY = 0.03  # a smaller relative change of PyTorch's time is not taken for a change of the GPU's clock


@dataclass(frozen=True)
class Baselines:
    """Times of the baselines at one workload; None where torch.compile fails."""

    eager_us: float
    compile_us: float | None = None
    autotune_us: float | None = None
    given_up: str = ""  # the first baseline that took too long to prepare

    @property
    def fastest_first(self) -> tuple[str, ...]:
        times = ((self.eager_us, EAGER), (self.compile_us, COMPILE), (self.autotune_us, AUTOTUNE))
        return tuple(name for _, name in sorted((time, name) for time, name in times if time))

    @property
    def best_us(self) -> float:
        return min(time for time in (self.eager_us, self.compile_us, self.autotune_us) if time)

    def anchored(self, eager_us: float) -> "Baselines":
        """Return the times scaled to the GPU's current clock, given eager PyTorch's current time.

        Times are only ever reduced: a kernel must not gain because eager PyTorch has become slower.
        """
        pace = eager_us / self.eager_us
        if pace >= 1 - STEADY:
            return self
        compile_us, autotune_us = (time and time * pace for time in (self.compile_us, self.autotune_us))
        return replace(self, eager_us=eager_us, compile_us=compile_us, autotune_us=autotune_us)


def completed(measurement: Measurement, standard: Standard) -> Measurement:
    """Return a measurement, made beside eager PyTorch only, with the times of all baselines."""
    times = Baselines(standard.eager_us, standard.compile_us, standard.autotune_us).anchored(measurement.eager_us)
    return replace(measurement, eager_us=times.eager_us, compile_us=times.compile_us, autotune_us=times.autotune_us)
