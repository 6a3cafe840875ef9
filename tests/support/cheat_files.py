"""The kernels in `tests/cheats`. The note of each describes its trick.

Comment lines right after the plan say how an evaluation may end:

    // caught: wrong, unsafe     outcomes that describe the trick correctly
    // on: cuda                  the device it is for; without this line, both devices
    // at: confirm               an evaluation may pass it by luck, but the confirmation of champions must not
    // class: scale              on what kind of inputs it is wrong; `CLASSES` lists them
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archive.kernel import CLOSE, Kernel, parse
from archive.records import Outcome

CORPUS = Path(__file__).parents[1] / "cheats"
DEVICES = ("emulated", "cuda")
KEYS = ("caught", "on", "at", "class")
CLASSES = (
    "special values", "structured inputs", "scale", "numbers", "races", "state", "envelope", "memory", "time", "plan",
    "other results",
)  # fmt: skip
OF_OUTCOMES = {
    Outcome.KEEPS_STATE: "state",
    Outcome.UNSAFE: "races",
    Outcome.OUT_OF_BOUNDS: "memory",
    Outcome.CHANGED_INPUT: "memory",
    Outcome.CRASHED: "memory",
    Outcome.TIMED_OUT: "time",
    Outcome.WRONG: "other results",
}


@dataclass(frozen=True)
class CheatFile:
    """One kernel of the corpus in `tests/cheats`."""

    path: Path
    text: str
    caught: tuple[Outcome, ...]
    devices: tuple[str, ...]
    at_confirm: bool
    said: str = ""  # its class, if the file says so

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def kernel(self) -> Kernel | None:
        """Return the kernel, or None if its plan cannot be read."""
        try:
            return parse(self.text)
        except ValueError:
            return None

    @property
    def kind(self) -> Outcome | None:
        """Return the outcome that describes the trick best; None for an honest kernel."""
        return self.caught[0] if self.caught else None

    @property
    def group(self) -> str:
        """Return the class of its fault, which the file or else the outcome names.

        "plan" for a plan that is refused.
        """
        return self.said or (OF_OUTCOMES.get(self.kind, "plan") if self.kind else "")

    @property
    def lasts(self) -> bool:
        """Return whether its evaluation may take until a deadline."""
        return Outcome.TIMED_OUT in self.caught or "bomb" in self.name


def files(folder: str) -> tuple[CheatFile, ...]:
    """Return the kernels in the folder `kernels`, `honest` or `gains`."""
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
        said=lines.get("class", ""),
    )
