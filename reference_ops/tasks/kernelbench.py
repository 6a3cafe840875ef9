"""KernelBench problems: files with `Model`, `get_inputs` and `get_init_inputs`."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from torch import nn

from reference_ops.op import Op
from reference_ops.tasks.assembling import assembled, sized
from reference_ops.tasks.smaller import smaller, tracer
from reference_ops.tasks.source import read
from reference_ops.tasks.standalone import TaskOrigin
from reference_ops.tasks.tracing import Case, traced


def load(path: Path) -> Op:
    """Return a problem as an op: its own size for a GPU, and smaller sizes as far as its sizes can change."""
    source = read(path)
    module, sizes = source.run(), source.sizes()
    own = traced(case_of(module, sizes))
    small = smaller(lambda changed: case_of(source.run(changed), changed), own, sizes)
    at = tracer(lambda changed: case_of(source.run({**sizes, **changed}), {**sizes, **changed}), own)
    found, inert = sized([own], small, at)
    note = f"KernelBench's {_place(path)}, a module in training mode."
    if own.weights:
        note += " Weights are named as in the module, with _ for a dot."
    if own.drawn_inside:
        note += f" The random numbers that it draws are the inputs {', '.join(own.drawn_inside)}."
    if own.left_out:
        note += f" Left out, because its random mask has no single right result: {', '.join(own.left_out)}."
    origin = TaskOrigin(module.Model.forward, source.module_name, path.name, source.text, *_made(module))
    return assembled(name_of(path), found, note + inert, origin)


def _made(module: ModuleType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in the file that are needed to make the module, and the expression that makes it."""
    if not hasattr(module, "get_init_inputs"):
        return ("Model",), ("_calling.skeleton(Model)[0]",)
    stars = "**" if isinstance(module.get_init_inputs(), dict) else "*"
    return ("Model", "get_init_inputs"), (f"_calling.skeleton(lambda: Model({stars}get_init_inputs()))[0]",)


def case_of(module: ModuleType, sizes: Mapping[str, int]) -> Case:
    def model() -> nn.Module:
        given = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
        made: nn.Module = module.Model(**given) if isinstance(given, dict) else module.Model(*given)
        return made

    return Case(model, module.get_inputs, tuple(sizes.items()))


def name_of(path: Path) -> str:
    """Return a name such as `kb1_23_softmax`, which is unique because a level numbers its problems."""
    level = level_of(path)
    stem = re.sub(r"\W+|__+", "_", path.stem).strip("_").lower()
    return f"kb{level}_{stem}"


def level_of(path: Path) -> str:
    found = re.fullmatch(r"level_?(\d+)", path.parent.name)
    return found.group(1) if found else ""


def _place(path: Path) -> str:
    level = level_of(path)
    return f"level {level}, problem {path.stem}" if level else f"problem {path.stem}"
