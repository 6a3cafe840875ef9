"""What kind of kernel a kernel is once it is compiled, so that a population keeps kinds and not near-copies."""

from typing import NamedTuple

from archive.records import Traits

REGISTER_CLASSES = (32, 64, 128)  # the upper ends; above the last, two blocks of 256 threads no longer fit
SHARED_CLASSES = (0, 16 * 1024, 64 * 1024)
MANY_LAUNCHES = 3


class Niche(NamedTuple):
    """Two kernels with equal niches work in much the same way."""

    load_bytes: int
    registers: int  # a class, not a number: the index into the upper ends
    shared: int  # a class
    launches: int  # up to MANY_LAUNCHES
    tensor_cores: bool
    atomics: bool

    def __str__(self) -> str:
        launches = "one launch" if self.launches == 1 else f"{self.launches} launches"
        shared = f"{_class(self.shared, SHARED_CLASSES)} bytes of" if self.shared else "no"
        said = [
            f"{self.load_bytes}-byte loads",
            f"{MANY_LAUNCHES} or more launches" if self.launches == MANY_LAUNCHES else launches,
            f"{shared} shared memory",
            f"{_class(self.registers, REGISTER_CLASSES)} registers",
        ]
        return ", ".join(said + ["tensor cores"] * self.tensor_cores + ["atomics"] * self.atomics)


def niche(traits: Traits) -> Niche:
    return Niche(
        traits.load_bytes,
        _index(traits.registers, REGISTER_CLASSES),
        _index(traits.shared_bytes, SHARED_CLASSES),
        min(traits.launches, MANY_LAUNCHES),
        traits.tensor_cores,
        traits.atomics,
    )


def _index(value: int, ends: tuple[int, ...]) -> int:
    return next((index for index, end in enumerate(ends) if value <= end), len(ends))


def _class(index: int, ends: tuple[int, ...]) -> str:
    return f"up to {ends[index]}" if index < len(ends) else f"over {ends[-1]}"
