"""Costs of an opaque op in a graph of torch.compile, in addition to its kernel's time."""

from dataclasses import dataclass

from evolve.export.template.forms import Lost

# The host's time for an opaque op, which PyTorch calls through Python, less that for a kernel of the compiler: about 15
# and 5 us, without the driver's own work, which is the same.
HOST_US = 10.0


@dataclass(frozen=True)
class Costs:
    """Times in microseconds that an opaque op takes in addition to its kernel, and that the compiler's code avoids."""

    copies_us: float  # copies before and after the kernel
    bytes_per_us: float  # bandwidth of copies on the device
    host_us: float
    slower_us: float  # how much slower a forward's kernel is than PyTorch, if it runs for the sake of its backward's
    lost: Lost

    @property
    def us(self) -> float:
        return self.copies_us + self._moving_us + self.host_us + self.slower_us

    @property
    def of_backward_us(self) -> float:
        """The time that each opaque op of the backward takes in addition."""
        return self.host_us + self.lost.backward / self.bytes_per_us

    @property
    def _moving_us(self) -> float:
        """The time of reads and writes of tensors that the compiler would keep on chip."""
        return self.lost.forward / self.bytes_per_us

    def __str__(self) -> str:
        moved = f"{self._moving_us:.1f} us to move {self.lost.forward:,} bytes that the compiler keeps on chip"
        return f"{self.copies_us:.1f} us for copies, {moved}, and {self.host_us:.1f} us of the host's time"
