"""A task as a module of an exported package: the part of its file that it needs, and the op as literals."""

import ast
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reference_ops.op import Op, TensorSpec
from reference_ops.tasks.calling import Call
from reference_ops.tasks.excerpt import excerpt
from reference_ops.tasks.source import TaskError

WIDTH = 100
TEXT = '''"""The part of {file} that {name} needs, and what evolve found out about it."""

{excerpt}


from reference_ops.tasks import calling as _calling

op = _calling.declared(
    calls=[
{calls}
    ],
    name={quoted},
    note=(
        {note}
    ),
    inputs={given},
    outputs={outputs},
    workloads=[
{workloads}
    ],
)
'''
CALL = """\
        _calling.Call(
            {made},
            arguments={arguments},
            inputs={inputs},
            weights={weights},
            idle={idle},
            changed=frozenset({changed}),
            drawn_inside={drawn_inside},
        ),"""


@dataclass(frozen=True)
class TaskOrigin:
    """The source of a task: its function or its module's forward, and the parts of its file that a package needs."""

    forward: Callable[..., Any]
    module: str  # the name under which the file was loaded
    file: str
    text: str  # text of the file, or of the Python code in it
    names: tuple[str, ...] = ()  # names in the file that `made` uses
    made: tuple[str, ...] = ()  # expressions for modules, in which `_calling` is reference_ops.tasks.calling
    obstacle: str = ""  # reason why a package cannot contain the task


def module_text(op: Op, origin: TaskOrigin, calls: Sequence[Call], parameters: Mapping[str, str]) -> str:
    """Return the text of the module. `parameters` maps the task's names of constants to those of the op."""
    if origin.obstacle:
        raise TaskError(origin.obstacle)
    note = "\n        ".join(repr(line) for line in textwrap.wrap(op.note, WIDTH, drop_whitespace=False))
    return TEXT.format(
        file=origin.file,
        name=op.name,
        quoted=repr(op.name),
        note=note or repr(""),
        given={spec.name: _dims(spec) for spec in op.inputs},
        outputs={spec.name: _dims(spec) for spec in op.outputs},
        workloads="\n".join(f"        {(w.dtype, dict(w.dims), dict(w.parameters))}," for w in op.gpu),
        excerpt=excerpt(origin.text, origin.names).strip(),
        calls="\n".join(_call(made, call, parameters) for made, call in zip(origin.made, calls, strict=False)),
    )


def _call(made: str, call: Call, parameters: Mapping[str, str]) -> str:
    arguments = tuple(
        (parameters[name], None) if name in parameters else (name, _literal(name, value))
        for name, value in call.arguments
    )
    return CALL.format(
        made=made,
        arguments=arguments,
        inputs=call.inputs,
        weights=call.weights,
        idle=call.idle,
        changed=sorted(call.changed),
        drawn_inside=call.drawn_inside,
    )


def _dims(spec: TensorSpec) -> str:
    dims = " ".join(spec.dims)
    return f"{spec.dtype}[{dims}]" if spec.dtype else dims


def _literal(name: str, value: object) -> object:
    """Return the value, or raise a TaskError unless its representation is a literal of Python."""
    try:
        if ast.literal_eval(repr(value)) == value:
            return value
    except (ValueError, SyntaxError):
        pass
    raise TaskError(
        f"its argument `{name}` is of type {type(value).__name__}, which cannot be written as a Python literal; make "
        "it a default of the function, and leave it out of the example"
    )
