"""Names for tensors and dims: dims are inferred by comparing a task's tensors at several sizes."""

import re
from collections.abc import Mapping, Sequence

from reference_ops.op import RESERVED

Shapes = Mapping[str, tuple[int, ...]]  # by tensor
Sizes = Mapping[str, int]  # what the task's author calls a size


def identifier(text: str, taken: set[str]) -> str:
    """A valid, unreserved and new C identifier as close to the text as can be; it is taken from now on."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    name = f"_{name}" if name[0].isdigit() else name
    while name in RESERVED or name in taken:
        base, _, number = name.rpartition("_")
        name = f"{base}_{int(number) + 1}" if number.isdigit() and base else f"{name}_2"
    taken.add(name)
    return name


def named_dims(
    examples: Sequence[Shapes], sizes: Sequence[Sizes], taken: set[str]
) -> tuple[dict[str, tuple[str, ...]], list[dict[str, int]]]:
    """The dims of every tensor, and the value of each symbolic dim in each example.

    A dim that never varies is a literal. Dims that vary together share a name: the author's, where a size of that
    name varies just so.
    """
    theirs: dict[tuple[int, ...], str] = {}
    for name in sizes[0] if sizes else ():
        theirs.setdefault(tuple(size[name] for size in sizes), name)
    names: dict[tuple[int, ...], str] = {}
    dims: dict[str, tuple[str, ...]] = {}
    for tensor, shape in examples[0].items():
        named = []
        for axis in range(len(shape)):
            seen = tuple(example[tensor][axis] for example in examples)
            if len(set(seen)) == 1:
                named.append(str(seen[0]))
                continue
            if seen not in names:
                requested = theirs.get(seen, f"{tensor}_{axis}")
                names[seen] = identifier(requested.lower(), taken)
            named.append(names[seen])
        dims[tensor] = tuple(named)
    values = [{name: seen[index] for seen, name in names.items()} for index in range(len(examples))]
    return dims, values
