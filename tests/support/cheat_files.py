"""The kernels in `tests/cheats`: each with who it fools and how, and what an evaluation must say of it.

The comment lines right after a plan:

    // caught: wrong, unsafe     the outcomes that describe the trick honestly
    // on: cuda                  the device it is for; without it, both
    // at: confirm               an evaluation may let it pass by luck, the confirmation of champions must not
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archive.kernel import CLOSE, Kernel, parse
from archive.records import Outcome

CORPUS = Path(__file__).parents[1] / "cheats"
DEVICES = ("emulated", "cuda")
KEYS = ("caught", "on", "at")


@dataclass(frozen=True)
class CheatFile:
    """One kernel of the corpus."""

    path: Path
    text: str
    caught: frozenset[Outcome]
    devices: tuple[str, ...]
    at_confirm: bool

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def kernel(self) -> Kernel | None:
        """None where the plan cannot even be read, whatever the error."""
        try:
            return parse(self.text)
        except ValueError:
            return None

    @property
    def lasts(self) -> bool:
        """Whether it may cost a deadline."""
        return Outcome.TIMED_OUT in self.caught or "bomb" in self.name


def files(folder: str) -> tuple[CheatFile, ...]:
    """The kernels of `kernels`, `honest` or `gains`."""
    return tuple(_read(path) for path in sorted((CORPUS / folder).glob("*.cu")))


def _read(path: Path) -> CheatFile:
    text = path.read_text()
    said = dict[str, str]()
    for line in text.partition(f"{CLOSE}\n")[2].splitlines():
        key, colon, value = line.removeprefix("// ").partition(": ")
        if not line.startswith("// ") or not colon or key not in KEYS:
            break
        said[key] = value
    return CheatFile(
        path=path,
        text=text,
        caught=frozenset(Outcome(name) for name in said.get("caught", "").split(", ") if name),
        devices=(said["on"],) if "on" in said else DEVICES,
        at_confirm=said.get("at") == "confirm",
    )
