"""The variables of a kernel's own object file that outlive a call, and what they hold in the loaded library."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from evolve.devices import object_file, state
from evolve.devices.object_file import Symbol

ZEROED, INITIALISED, FOR_THE_LINKER_ALONE = ".bss", ".data", ".data.rel.ro"
ANCHOR = "evolve_launch"


def lasting_variables(own: bytes, source: str) -> tuple[str, ...]:
    """Those to be compared after every call; raises for those that begin as zero and are not declared constant.

    What the host keeps among constants is not among them, nor is shared memory: it is declared to be each thread's own.
    """
    symbols = object_file.symbols(own)
    zeroed = [symbol.name for symbol in symbols if _in(symbol, ZEROED)]
    state.check_compiled(zeroed, [symbol.name for symbol in symbols if symbol.section is None], source)
    kept = [symbol.name for symbol in symbols if _in(symbol, INITIALISED) and not _in(symbol, FOR_THE_LINKER_ALONE)]
    return (*zeroed, *kept)


def _in(symbol: Symbol, section: str) -> bool:
    """Compilers split sections by what they hold: `.data.rel.local`, `.bss.name`."""
    held = symbol.section.name if symbol.kind == object_file.VARIABLE and symbol.section else ""
    return held == section or held.startswith(f"{section}.")


@dataclass(frozen=True)
class Watched:
    """One variable of a loaded library, and what it held before any launch."""

    name: str
    address: int
    loaded: bytes

    def changed(self) -> bool:
        """Whether a launch changed it; then it is put back, since other programs may share the library."""
        if ctypes.string_at(self.address, len(self.loaded)) == self.loaded:
            return False
        ctypes.memmove(self.address, self.loaded, len(self.loaded))
        return True


def watched(library: ctypes.CDLL, file: Path, names: tuple[str, ...]) -> tuple[Watched, ...]:
    """To be called before the first launch."""
    if not names:
        return ()
    symbols = object_file.symbols(file.read_bytes())
    anchor = next(symbol.at for symbol in symbols if symbol.name == ANCHOR)
    start = (ctypes.cast(library[ANCHOR], ctypes.c_void_p).value or 0) - anchor
    found = (symbol for symbol in symbols if symbol.name in names and symbol.kind == object_file.VARIABLE)
    return tuple(Watched(s.name, start + s.at, ctypes.string_at(start + s.at, s.size)) for s in found)
