"""Detection of state that a kernel could keep between calls: variables that outlive a call, and a heap.

The symbols of the compiled kernel are examined, so the same rules apply on every device.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from archive.records import Outcome
from evolve.devices.device import RejectedError
from evolve.devices.source_text import TIME_MACROS, masked, word_beginning

ALLOCATES = re.compile(r"malloc|calloc|realloc|free|_Z(?:nw|na|dl|da)\w+")  # including the operators new and delete
OPERATORS = {"_Znw": "new", "_Zna": "new[]", "_Zdl": "delete", "_Zda": "delete[]"}
# Namespaces of headers. Their variables may start as zero, but are compared after every call like all others.
LIBRARIES = ("cuda", "cub", "thrust", "cooperative_groups", "nvcuda")
COMPILER = "__nv_"  # variables that some versions of NVRTC add for atomics
BRACKETS = r"\((?:[^;{}()]|\([^;{}()]*\))*\)"
INITIAL_VALUE = rf"(?:[^;{{}}()=,]|[=!<>]=|{BRACKETS})*"  # ends before a comma that is not within brackets
INSTEAD = "declare a [workspace] with zero = true, or make it const / __constant__"


def check_compiled(to_keep: Iterable[str], undefined: Iterable[str], *sources: str) -> None:
    """Raise for a heap, and for a variable that starts as zero and is not declared constant in any of the sources.

    Symbols do not show whether the kernel writes to other variables. The device therefore compares those after every
    call.
    """
    for name in undefined:
        if ALLOCATES.fullmatch(name):
            message = "the kernel allocates memory of its own, which outlives the call: declare a [workspace]"
            raise RejectedError(Outcome.KEEPS_STATE, f"{message} (it calls `{OPERATORS.get(name[:4], name)}`)")
    doubtful = [name for name in to_keep if not _of_a_library(name)]
    text = "\n".join(map(masked, sources)) if doubtful else ""
    for name in doubtful:
        if not _declared_constant(name, text):
            message = f"`{readable(name)}` keeps its value from one call to the next"
            raise RejectedError(Outcome.KEEPS_STATE, f"{message}: {INSTEAD}")


@lru_cache(maxsize=16)  # all workloads have the same source
def check_source(source: str) -> None:
    """Raise for a source that reads the time at which it is compiled."""
    if found := word_beginning(source, TIME_MACROS):
        message = (
            f"the kernel reads `{found[1]}`, which contains the time of compilation: outputs may depend only on inputs"
        )
        raise RejectedError(Outcome.KEEPS_STATE, message)


def changed(names: Iterable[str]) -> RejectedError:
    """Return the verdict on a kernel that has changed these variables since it was loaded."""
    named = ", ".join(f"`{readable(name)}`" for name in names)
    return RejectedError(Outcome.KEEPS_STATE, f"the kernel changed {named}, which the next call can read: {INSTEAD}")


def readable(symbol: str) -> str:
    """Return `calls` for `_ZZ10test_entryE5calls`, `a::other` for `_ZN1a5otherE`; leave other symbols unchanged."""
    return "::".join(_parts(symbol)[-1 if symbol.startswith("_ZZ") else 0 :])


def _of_a_library(symbol: str) -> bool:
    parts = _parts(symbol)
    of_compiler = parts[0].startswith(COMPILER) or parts[-1].startswith(COMPILER)
    return of_compiler or (len(parts) > 1 and parts[0] in LIBRARIES)


def _declared_constant(symbol: str, text: str) -> bool:
    """Return whether the variable is declared constant, alone or after other variables of the same declaration."""
    name = re.escape(_parts(symbol)[-1])
    earlier = rf"[^;{{}}()=*]*(?:={INITIAL_VALUE},[^;{{}}()=*]*)*"  # no pointers: `const` applies to their targets
    return re.search(rf"\b(?:const|constexpr|__constant__)\b{earlier}\b{name}\b", text) is not None


def _parts(symbol: str) -> list[str]:
    """Return the plain names in a mangled name, without those that the compiler has added."""
    for local in re.finditer(r"E(\d+)", symbol) if symbol.startswith("_ZZ") else ():
        end = local.end() + int(local.group(1))
        # in a mangled name, repeated names are replaced by numbers
        if end <= len(symbol) and re.fullmatch(r"(?:_\d+|__\d+_)?", symbol[end:]):
            return [*_parts(f"_Z{symbol[3 : local.start()]}"), symbol[local.end() : end]]
    match = re.match(r"_ZN?K?L?(?=\d)", symbol)
    if match is None:
        return [symbol]
    parts, at = [], match.end()
    while length := re.match(r"L?(\d+)", symbol[at:]):
        start = at + length.end()
        at = start + int(length.group(1))
        parts.append(symbol[start:at])
        at = _after_arguments(symbol, at)
    return [part for part in parts if not part.startswith(("_INTERNAL_", "_GLOBAL_"))] or [symbol]


def _after_arguments(symbol: str, at: int) -> int:
    """Return the position behind the arguments of a template, as in `4AxisILi31EfE`, or `at` if there are none."""
    if symbol[at : at + 1] != "I":
        return at
    at, depth = at + 1, 1
    while depth and at < len(symbol):
        literal = symbol[at] == "L"  # a type, a number and an E, such as Lb0E, or L4Mode2E
        at += literal
        name = re.compile(r"\d+").match(symbol, at)
        at = name.end() + int(name[0]) if name else at + 1
        if literal:
            at = symbol.find("E", at) + 1 or len(symbol)
        elif not name:
            depth += (symbol[at - 1] in "IJNX") - (symbol[at - 1] == "E")
    return at
