"""What a compiler says, without what it says of files that are none of the kernel's business.

The second wall: a kernel that gets the compiler to read a file of the user's shall not find it quoted in its log.
"""

import os.path
import re
from collections.abc import Iterable
from pathlib import Path

LEFT_OUT = "error: the compiler read a file that is not the kernel's; what it says of that file is left out"
# `file:12:5: error`, `file:12: note`, `file: In function`, `file(12): error`, `ptxas file, line 12; error`
PLACE = re.compile(
    r"(?P<gnu>[^\s:][^:\n]*):(?:\d+:|[ ](?:In |At |Assembler messages))"
    r"|(?P<nvrtc>\S[^\n]*?)\(\d+\): \w"
    r"|ptxas (?P<ptxas>[^\n]*?), line \d+;"
)
# Where something begins that is about no file.
GENERAL = re.compile(
    r"\d+ \w+ detected|At end of source|Remark:|ptxas |nvrtc|cc1plus:|collect2:|compilation terminated|\S*ld"
)
# Where a compiler says which file led to which; what it quotes from them comes later.
ROUTE = re.compile(r"In file included from |\s+from ")


def of_known_files(log: str, names: Iterable[str], folders: Iterable[Path]) -> str:
    """The log without the diagnostics, source excerpts and all, of files with other names in other folders."""
    known, roots = set(names), [os.path.normpath(folder) + os.sep for folder in folders]

    def is_known(file: str) -> bool:
        return file in known or (Path(file).is_absolute() and os.path.normpath(file).startswith(tuple(roots)))

    kept, keep, dropped = [], True, False
    for line in log.split("\n"):
        place = None if ROUTE.match(line) else PLACE.match(line)
        if place:
            keep = is_known(place.group("gnu") or place.group("nvrtc") or place.group("ptxas"))
        elif GENERAL.match(line):
            keep = True
        dropped |= not keep
        if keep:
            kept.append(line)
    return "\n".join([*kept, LEFT_OUT] if dropped else kept)
