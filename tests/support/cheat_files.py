"""The kernels in `tests/cheats`: the trick of each stands in its note, the outcomes that an evaluation may have below.

The comment lines right after a plan:

    // caught: wrong, unsafe     the outcomes that describe the trick honestly
    // on: cuda                  the device it is for; both devices where the line is missing
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
    caught: tuple[Outcome, ...]
    devices: tuple[str, ...]
    at_confirm: bool

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def kernel(self) -> Kernel | None:
        """The kernel, or None if its plan cannot be read."""
        try:
            return parse(self.text)
        except ValueError:
            return None

    @property
    def kind(self) -> Outcome | None:
        """The outcome that describes the trick best; None for an honest kernel."""
        return self.caught[0] if self.caught else None

    @property
    def lasts(self) -> bool:
        """Whether its evaluation may take as long as a deadline."""
        return Outcome.TIMED_OUT in self.caught or "bomb" in self.name


def files(folder: str) -> tuple[CheatFile, ...]:
    """The kernels of `kernels`, `honest` or `gains`."""
    return tuple(_read(path) for path in sorted((CORPUS / folder).glob("*.cu")))


def _read(path: Path) -> CheatFile:
    text = path.read_text()
    lines = dict[str, str]()
    for line in text.partition(f"{CLOSE}\n")[2].splitlines():
        key, colon, value = line.removeprefix("// ").partition(": ")
        if not line.startswith("// ") or not colon or key not in KEYS:
            break
        lines[key] = value
    return CheatFile(
        path=path,
        text=text,
        caught=tuple(Outcome(name) for name in lines.get("caught", "").split(", ") if name),
        devices=(lines["on"],) if "on" in lines else DEVICES,
        at_confirm=lines.get("at") == "confirm",
    )
