"""FlashInfer-Bench tasks: a JSON file with axes, tensors and a reference in Python, and workloads as JSONL."""

import ast
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reference_ops.names import TAKEN
from reference_ops.op import COMMON, DTYPES, NORMAL, Number, Op, Tensors, TensorSpec, Workload
from reference_ops.precision import TORCH_DTYPES
from reference_ops.tasks.assembling import sound
from reference_ops.tasks.calling import Call, in_order, module_of
from reference_ops.tasks.smaller import MOST_ELEMENTS, MOST_OUTPUTS
from reference_ops.tasks.source import TaskError, identifier, run_text
from reference_ops.tasks.standalone import TaskOrigin, module_text
from reference_ops.tasks.tracing import InFloat64

MOST_WORKLOADS, SMALL = 6, 4
FP8_LIMIT = 2.0
INTEGERS = {"int8": (-128, 128), "uint8": (0, 256)}
OTHER_INTEGERS = (-1024, 1024)
STORED = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
Json = Mapping[str, Any]


def load(path: Path) -> Op:
    """Return a definition as an op, at up to six of its workloads, from the largest to the smallest."""
    definition = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(definition, dict) or not {"axes", "inputs", "outputs", "reference"} <= definition.keys():
        raise TaskError("it is not a FlashInfer-Bench definition: it lacks axes, inputs, outputs or reference")
    if definition.get("op_type") == "sampling":
        raise TaskError("it draws random numbers, so there is no single right output")
    run = run_text(definition["reference"], f"user_task_{identifier(path.stem, set())}", path).run
    listed = _spread(_workloads(path, definition))
    names = _names(definition)
    dtype = _dtype(definition)
    gpu = tuple(_workload(definition, one, names, dtype) for one in listed)
    emulated = tuple(_workload(definition, one, names, dtype) for one in _small(definition, listed))
    every = {_workload(definition, one, names, dtype).dims: one for one in (*listed, *_small(definition, listed))}
    root = _root(path)
    op = Op(
        name=identifier(f"fi_{definition['name']}", set()),
        note=str(definition.get("description") or f"FlashInfer-Bench's {definition['name']}."),
        reference=_reference(run, definition, names),
        inputs=_specs(definition["inputs"], names, dtype),
        outputs=_specs(definition["outputs"], names, dtype),
        gpu=tuple(dict.fromkeys(gpu)),
        emulated=tuple(dict.fromkeys(emulated)),
        flops=lambda _: 0,
        values=(),
        by_rows=False,
        draw=_drawing(definition, every, names, root),
        valid=lambda known: any(all(known[name] == size for name, size in dims) for dims in every),
        only_listed=True,
    )
    made = f"_calling.module_of(_calling.in_order(run, {[*definition['outputs']]}))"
    origin = TaskOrigin(run, run.__module__, path.name, definition["reference"], ("run",), (made,))
    arguments = tuple((names[name], None) for name in definition["inputs"])
    call = Call(module_of(run), arguments, tuple(one.name for one in op.inputs))
    op = replace(op, standalone=lambda: module_text(op, origin, [call], {}))
    if not op.emulated or not sound(op, op.emulated[0], NORMAL):
        return op
    return replace(op, values=tuple(name for name in COMMON if sound(op, op.emulated[0], name)))


def _workloads(path: Path, definition: Json) -> list[Json]:
    """Read the workloads from the first file that contains them. A definition without variable axes needs no file."""
    root = _root(path)
    places = [path.with_suffix(".jsonl"), *sorted((root / "workloads").rglob(f"{definition['name']}.jsonl"))]
    for place in places:
        if place.is_file():
            lines = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines() if line.strip()]
            return [line.get("workload", line) for line in lines]
    if any(axis["type"] == "var" for axis in definition["axes"].values()):
        raise TaskError(f"no workloads: neither {places[0]} nor {root / 'workloads'}/**/{definition['name']}.jsonl")
    return [{"axes": {}, "inputs": {}}]


def _root(path: Path) -> Path:
    """Return the folder of the data set. Paths of tensors are relative to it."""
    above = next((parent for parent in path.parents if parent.name == "definitions"), None)
    return above.parent if above else path.parent


def _spread(workloads: Sequence[Json]) -> list[Json]:
    """Choose workloads with different axes: the largest first, then evenly spaced down to the smallest."""
    distinct = list({json.dumps(one["axes"], sort_keys=True): one for one in workloads}.values())
    distinct.sort(key=lambda one: -math.prod(one["axes"].values()))
    if len(distinct) <= MOST_WORKLOADS:
        return distinct
    return [distinct[round(index * (len(distinct) - 1) / (MOST_WORKLOADS - 1))] for index in range(MOST_WORKLOADS)]


def _small(definition: Json, listed: Sequence[Json]) -> list[Json]:
    """Return workloads that a CPU can emulate: as listed, or with smaller axes if all inputs are random."""
    found = [one for one in listed if _fits(definition, one)]
    drawn = [one for one in listed if all(spec["type"] != "safetensors" for spec in one["inputs"].values())]
    for one in drawn[:1] if not found else []:
        tried = {**one, "axes": {name: min(size, SMALL) for name, size in one["axes"].items()}}
        if _fits(definition, tried) and _holds(definition, tried["axes"]):
            found.append(tried)
    return found


def _holds(definition: Json, axes: Mapping[str, int]) -> bool:
    sizes = _sizes(definition, axes)
    try:
        return all(
            eval(compile(ast.parse(rule, mode="eval"), "a constraint", "eval"), {}, dict(sizes))  # noqa: S307
            for rule in definition.get("constraints") or ()
        )
    except Exception:  # noqa: BLE001 - a constraint that uses more than axes
        return False


def _fits(definition: Json, workload: Json) -> bool:
    sizes = _sizes(definition, workload["axes"])

    def elements(tensors: Json) -> int:
        return sum(math.prod(sizes[axis] for axis in spec["shape"]) for spec in tensors.values() if spec["shape"])

    outputs = elements(definition["outputs"])
    return outputs <= MOST_OUTPUTS and elements(definition["inputs"]) + outputs <= MOST_ELEMENTS


def _sizes(definition: Json, axes: Mapping[str, int]) -> dict[str, int]:
    return {name: axis["value"] if axis["type"] == "const" else axes[name]
            for name, axis in definition["axes"].items() if axis["type"] == "const" or name in axes}  # fmt: skip


def _names(definition: Json) -> dict[str, str]:
    """Return the op's names for tensors, scalars and axes."""
    taken = set(TAKEN)
    return {name: identifier(name, taken) for name in (*definition["inputs"], *definition["outputs"])} | {
        f"axis {name}": identifier(name, taken) for name in definition["axes"]
    }


def _dtype(definition: Json) -> str:
    floats = [spec["dtype"] for spec in definition["inputs"].values() if spec["shape"] is not None]
    return next((dtype for dtype in floats if re.match(r"b?float(16|32)", dtype)), "float32")


def _specs(tensors: Json, names: Mapping[str, str], dtype: str) -> tuple[TensorSpec, ...]:
    specs = []
    for name, spec in tensors.items():
        if spec["shape"] is None:
            continue
        if spec["dtype"] not in DTYPES:
            raise TaskError(f"`{name}` is of dtype {spec['dtype']}, which kernels do not support")
        dims = tuple(names[f"axis {axis}"] for axis in spec["shape"])
        specs.append(TensorSpec(names[name], dims, "" if spec["dtype"] == dtype else spec["dtype"]))
    return tuple(specs)


def _workload(definition: Json, workload: Json, names: Mapping[str, str], dtype: str) -> Workload:
    sizes = _sizes(definition, workload["axes"])
    scalars: list[tuple[str, Number]] = []
    for name, spec in definition["inputs"].items():
        if spec["shape"] is None:
            given = workload["inputs"].get(name, {})
            scalars.append((names[name], given.get("value", 1.0 if "float" in spec["dtype"] else 1)))
    return Workload(dtype, tuple((names[f"axis {name}"], size) for name, size in sizes.items()), tuple(scalars))


def _reference(run: Callable[..., Any], definition: Json, names: Mapping[str, str]) -> Callable[..., Any]:
    order = [(name, spec["shape"] is None) for name, spec in definition["inputs"].items()]
    ordered = in_order(run, [*definition["outputs"]])

    def called(tensors: tuple[torch.Tensor, ...], scalars: Mapping[str, Number]) -> tuple[torch.Tensor, ...]:
        rest = iter(tensors)
        given = [scalars[names[name]] if scalar else next(rest) for name, scalar in order]
        result = ordered(*given)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    def reference(*tensors: torch.Tensor, **scalars: Number) -> tuple[torch.Tensor, ...]:
        if any(tensor.dtype == torch.float64 for tensor in tensors):
            with InFloat64():
                return called(tensors, scalars)
        return called(tensors, scalars)

    reference.__wrapped__ = run  # type: ignore[attr-defined]
    reference.__module__ = run.__module__
    return reference


def _drawing(
    definition: Json, every: Mapping[tuple[tuple[str, int], ...], Json], names: Mapping[str, str], root: Path
) -> Callable[[Tensors, torch.Generator], None]:
    """Return a function that draws integers and 8-bit numbers as FlashInfer-Bench does, and reads stored tensors."""
    tensors = {name: spec for name, spec in definition["inputs"].items() if spec["shape"] is not None}
    axes = {name: names[f"axis {name}"] for name in definition["axes"]}

    def draw(inputs: Tensors, generator: torch.Generator) -> None:
        seen = {axes[axis]: size for name, spec in tensors.items()
                for axis, size in zip(spec["shape"], inputs[names[name]].shape, strict=True)}  # fmt: skip
        workload = next(one for dims, one in every.items() if all(seen.get(name, size) == size for name, size in dims))
        for name, spec in tensors.items():
            target, given = inputs[names[name]], workload["inputs"].get(name, {"type": "random"})
            if given["type"] == "safetensors":
                target.copy_(stored(root / given["path"], given["tensor_key"]))
            elif spec["dtype"].startswith("float8"):
                drawn = torch.empty(target.shape, device=target.device).normal_(generator=generator)
                target.copy_(drawn.clamp_(-FP8_LIMIT, FP8_LIMIT))
            elif spec["dtype"] == "bool":
                target.copy_(torch.randint(0, 2, target.shape, generator=generator, device=target.device))
            elif not target.is_floating_point():
                least, end = INTEGERS.get(spec["dtype"], OTHER_INTEGERS)
                target.copy_(torch.randint(least, end, target.shape, generator=generator, device=target.device))

    return draw


def stored(path: Path, key: str) -> torch.Tensor:
    """Read one tensor of a safetensors file: eight bytes of length, a header in JSON, and the numbers."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        if key not in header:
            raise TaskError(f"{path} holds no `{key}`")
        begin, end = header[key]["data_offsets"]
        file.seek(8 + length + begin)
        numbers = bytearray(file.read(end - begin))
    return torch.frombuffer(numbers, dtype=TORCH_DTYPES[STORED[header[key]["dtype"]]]).reshape(header[key]["shape"])
