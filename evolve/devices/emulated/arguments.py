"""A launch's arguments, checked against the parameter types of its entry, as C values."""

import ctypes
from collections.abc import Mapping

import torch

from archive.binding import BoundLaunch, Pointer, Pointers, Value
from archive.records import Outcome
from evolve.devices.device import RejectedError

CValue = ctypes.Array[ctypes.c_char]


class Parameter(ctypes.Structure):
    """One parameter of an entry: its kind as a character, and its bytes."""

    _fields_ = (("kind", ctypes.c_int), ("bytes", ctypes.c_int))

    @property
    def described(self) -> str:
        kinds = {"p": "a pointer", "i": "an integer", "u": "an unsigned integer", "f": "a floating point number"}
        kinds["l"] = f"a List of {self.bytes // 8} pointers"
        kind = chr(self.kind)
        return kinds.get(kind, "a value of a type that no argument has") + (
            "" if kind in "pl" else f" of {self.bytes} bytes"
        )


class Entry(ctypes.Structure):
    """One row of the table that the compiled kernel exports."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("count", ctypes.c_int),
        ("parameters", ctypes.POINTER(Parameter)),
    )


def check(launch: BoundLaunch, entry: Entry) -> None:
    """Raise a RejectedError unless every argument fits its parameter."""
    if entry.count != len(launch.args):
        raise RejectedError(
            Outcome.MALFORMED,
            f"launch {launch.index}: `{launch.entry}` takes {entry.count} parameters, args lists {len(launch.args)}",
        )
    for position, value in enumerate(launch.args):
        parameter = entry.parameters[position]
        if problem := _misfit(value, parameter):
            raise RejectedError(
                Outcome.MALFORMED, f"launch {launch.index}, argument {position} of `{launch.entry}`: {problem}"
            )


def _misfit(value: Value, parameter: Parameter) -> str:
    kind, size = chr(parameter.kind), parameter.bytes
    given = _described(value)
    fits = {Pointer: kind == "p", Pointers: kind == "l", float: kind == "f", int: kind in "iu" and size in {4, 8}}
    if not fits[type(value)]:
        return f"the plan passes {given}, the entry takes {parameter.described}"
    if isinstance(value, Pointers) and size != 8 * len(value.names):
        return f"the plan passes {given}, the entry takes {parameter.described}"
    if isinstance(value, int):
        bits = 8 * size
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind == "i" else (0, (1 << bits) - 1)
        if not low <= value <= high:
            return f"{value} does not fit {parameter.described}"
    return ""


def _described(value: Value) -> str:
    match value:
        case Pointer(name):
            return f"the tensor `{name}`"
        case Pointers(names):
            return f"a list of {len(names)} tensors ({', '.join(names)})"
        case float():
            return f"the float {value}"
    return f"the integer {value}"


def as_c(value: Value, parameter: Parameter, tensors: Mapping[str, torch.Tensor]) -> ctypes.Array[ctypes.c_char]:
    """The bytes of one argument."""
    match value:
        case Pointer(name):
            data: bytes = bytes(ctypes.c_void_p(tensors[name].data_ptr()))
        case Pointers(names):
            data = b"".join(bytes(ctypes.c_void_p(tensors[name].data_ptr())) for name in names)
        case float():
            data = bytes(ctypes.c_float(value) if parameter.bytes == 4 else ctypes.c_double(value))
        case _:
            data = (value % (1 << 8 * parameter.bytes)).to_bytes(parameter.bytes, "little")
    return ctypes.create_string_buffer(data, len(data))
