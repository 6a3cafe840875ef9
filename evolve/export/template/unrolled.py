"""Generated functions without loops for one kind of call: one recognizes the call, another launches its kernels.

A loop over the tensors of a call would take longer than the rest of the work.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from threading import Thread
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from evolve.export.template import options

# Two functions, each of which returns None if it cannot run: one for the tensors of a call, one for a call if it is of
# the same kind.
Run = Callable[..., Any]
Recalled = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
REFUSALS = (TypeError, AttributeError, IndexError, ValueError, RuntimeError, ArithmeticError)
MOST_SHAPES, MOST_OF_SHAPE = 4096, 4  # kinds beyond this number are forgotten, and looked up or decided again
Shape = tuple[int, ...]
ELSEWHERE = object()  # the result of a call that PyTorch must run
PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype))
SEVERAL = frozenset((list, tuple, torch.Size))

_any_autocast = torch._C._is_any_autocast_enabled  # noqa: SLF001 - the public way takes a type of device
_deterministic = torch._C._get_deterministic_algorithms  # noqa: SLF001 - the public way is a function of Python
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - there is no public way to ask
_tf32 = torch._C._get_cudnn_allow_tf32  # noqa: SLF001 - the public way takes half a microsecond


class View(NamedTuple):
    """A view of a tensor of a call that is copied for a kernel, which reads contiguous elements."""

    shape: Shape
    stride: Shape
    is_whole: bool  # whether the view is the whole tensor, unchanged


class Source(NamedTuple):
    """The place of an input of a kernel: the tensor of the call, the offset in bytes, and the shape.

    The kernel reads the tensor in place, or a copy of a view that begins at this offset.
    """

    tensor: int
    offset: int
    shape: Shape
    view: View | None = None

    def copied(self, x: Tensor) -> Tensor:
        """Return a contiguous, aligned copy of the values at this place."""
        return self._there(x).clone(memory_format=torch.contiguous_format)

    def read(self, x: Tensor) -> Tensor:
        """Return the part of the tensor's memory with the shape that a kernel reads."""
        return self._there(x).reshape(self.shape)

    def _there(self, x: Tensor) -> Tensor:
        shape, stride = (self.view.shape, self.view.stride) if self.view else (self.shape, contiguous(self.shape))
        return x.as_strided(shape, stride, x.storage_offset() + self.offset // x.element_size())


class Written(NamedTuple):
    """Allocation of an output for the caller: contiguous except for the order of its dims."""

    shape: Shape
    stride: Shape
    dtype: torch.dtype
    is_wanted: bool  # if not, the output is only memory to which the kernel writes


class Kinds:
    """The kinds of calls that were seen before, by the shape of a call's first argument."""

    def __init__(self) -> None:
        self.known: dict[torch.Size, tuple[Recalled, ...]] = {}

    def recall(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Run a call of a known kind and return its result; None if the kind is not known."""
        try:
            known = self.known.get(arguments[0].shape, ())
        except REFUSALS:  # raised by arguments that are not plain tensors
            return None
        for one in known:
            result = one(arguments, named)
            if result is not None:
                return result
        return None

    def remember(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any], tensors: Sequence[Tensor], run: Run, tf32: bool
    ) -> None:
        """Run this for the tensors of a later call of the same kind; `tf32` says whether TF32 matters."""
        one = recalled(arguments, named, tensors, run, uses_tf32=tf32)
        if one is not None:
            if len(self.known) >= MOST_SHAPES:
                self.known.clear()
            shape = tensors[0].shape
            self.known[shape] = (one, *self.known.get(shape, ())[: MOST_OF_SHAPE - 1])


def by_pytorch(*_tensors: Tensor) -> Any:
    """The plan of a call that PyTorch runs."""
    return ELSEWHERE


@cache
def _maker(lines: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Callable[..., Any]]:
    """Return a function that takes values for these names and returns the function `call` that the lines define."""
    text = "\n".join([f"def make({', '.join(names)}):", *[f"    {line}" for line in lines], "    return call"])
    found: dict[str, Any] = {}
    exec(compile(text, "<written out by a package>", "exec"), found)  # noqa: S102 - of names and numbers made here
    make: Callable[..., Callable[..., Any]] = found["make"]
    return make


def defined(lines: Sequence[str], values: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function `call` that the lines define, in which names have these values."""
    return _maker(tuple(lines), tuple(values))(**values)


def numbered(letter: str, numbers: Iterable[int]) -> str:
    """Return names as arguments or a tuple: `x0, x2, `."""
    return "".join(f"{letter}{number}, " for number in numbers)


def recalled(
    arguments: tuple[Any, ...], named: Mapping[str, Any], tensors: Sequence[Tensor], run: Run, *, uses_tf32: bool
) -> Recalled | None:
    """Return a function that calls `run` with the tensors of a call if the call is of the same kind as this one.

    The kind comprises everything that a decision depends on: shapes, strides and dtypes of tensors, other arguments by
    value, and the modes of PyTorch and of the package. The function is called only where the shape of the first
    argument is the same. Return None if the kind cannot be recognized in this way.
    """
    given = (*arguments, *named.values())
    if not arguments or not _is_plain(arguments[0]) or not guards_tell():
        return None
    values: dict[str, Any] = {"alike": _alike, "check": _guard(tensors), "names": tuple(named)}
    values |= {f"n{at}": name for at, name in enumerate(named)}
    read, opened, conditions = list[str](), list[str](), list[str]()
    for at, x in enumerate(given):
        if _is_plain(x):
            read.append(f"x{at}")
        elif type(x) in {tuple, list} and x and all(map(_is_plain, x)):
            parts = [f"x{at}_{place}" for place in range(len(x))]
            opened += [f"    if type(x{at}) is not v{at} or len(x{at}) != {len(x)}:", "        return None"]
            opened.append(f"    {', '.join(parts)}, = x{at}")
            values[f"v{at}"] = type(x)
            read += parts
        elif _is_fixed(x):
            conditions.append(_differs(at, x, values))
        else:
            return None
    for place, (name, x) in enumerate(zip(read, tensors, strict=True)):
        # a nested tensor would end the process in the guard; it had no shape when the kind was looked up
        if place:
            values[f"kind{place}"] = type(x)
            conditions.append(f"type({name}) is not kind{place} or {name}.is_nested")
    others = _other_modes(values, tensors, uses_tf32=uses_tf32, by_kernel=run is not by_pytorch)
    every = ", ".join(read)
    values |= {"elsewhere": ELSEWHERE} if run is by_pytorch else {"run": run}
    lines = [
        "def call(arguments, named):",
        f"    if len(arguments) != {len(arguments)} or {'tuple(named) != names' if named else 'named'}:",
        "        return None",
        f"    {numbered('x', range(len(arguments)))}= arguments",
        *[f"    x{len(arguments) + at} = named[n{at}]" for at in range(len(named))],
        *opened,
        f"    if {' or '.join([*conditions, f'not check({every})', *others])}:",
        "        return None",
        "    return elsewhere" if run is by_pytorch else f"    return run({every})",
    ]
    return defined(lines, values)


def _is_plain(x: Any) -> bool:
    return type(x) is Tensor or type(x) is Parameter


def _other_modes(values: dict[str, Any], tensors: Sequence[Tensor], *, uses_tf32: bool, by_kernel: bool) -> list[str]:
    """Return conditions that hold where modes or options differ from the current ones, and add their values.

    The guard covers tracing, the transforms of torch.func and autocast, which add to every tensor's keys. Other modes
    need no condition where PyTorch runs, because PyTorch also runs in these modes.
    """
    learning, kind = any(x.requires_grad for x in tensors), tensors[0].device.type
    cast_to = autocast_to(kind) if _any_autocast() else None
    values |= {"kind": kind, "autocast_dtype": torch.get_autocast_dtype, "cast_to": cast_to}
    values |= {"modes": _dispatch_modes, "forward_ad": forward_ad, "deterministic": _deterministic}
    values |= {"chosen": options.current(), "of_block": options.of_block, "of_process": options.of_process}
    values |= {"gradients": torch.is_grad_enabled, "tf32": _tf32}
    return [
        *(["modes() or forward_ad._current_level >= 0"] if by_kernel else []),
        "(of_block() or of_process[0]) is not chosen",
        f"deterministic() is not {_deterministic()}",
        *([f"tf32() is not {_tf32()}"] if uses_tf32 else []),
        *([f"gradients() is not {torch.is_grad_enabled()}"] if learning else []),
        *(["autocast_dtype(kind) is not cast_to"] if cast_to else []),
    ]


def autocast_to(device_type: str) -> torch.dtype | None:
    """Return the dtype of autocast on devices of a type, where it is on."""
    is_on = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if is_on else None


def _is_fixed(x: Any) -> bool:
    """Return whether a value can be compared with another."""
    return all(map(_is_fixed, x)) if type(x) in SEVERAL else type(x) in PLAIN


def _is_constant(x: Any) -> bool:
    """Return whether a fixed value cannot change, because it holds no list."""
    return type(x) is not list and (type(x) is not tuple or all(map(_is_constant, x)))


def _differs(at: int, x: Any, values: dict[str, Any]) -> str:
    """Return the condition that an argument has another value than this one, and add the values that it reads."""
    values[f"v{at}"] = deepcopy(x)
    same = f"x{at} is v{at} or " if _is_constant(x) else ""
    if type(x) in SEVERAL and all(type(one) is int for one in x):
        values |= {f"w{at}": type(x), f"kinds{at}": [int] * len(x)}  # True and 1 are equal
        return f"not ({same}type(x{at}) is w{at} and x{at} == v{at} and [*map(type, x{at})] == kinds{at})"
    return f"not ({same}alike(x{at}, v{at}))"


def _alike(x: Any, fixed: Any) -> bool:
    """Return whether a value is the same as a fixed value. 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(x) is not type(fixed):
        return False
    if type(fixed) in SEVERAL:
        return len(x) == len(fixed) and all(map(_alike, x, fixed))
    return bool(x == fixed and (x or repr(x) == repr(fixed)))


def _guard(tensors: Sequence[Tensor]) -> Callable[..., bool]:
    """Return a guard that checks whether tensors are like these.

    It compares types, keys, shapes, strides, dtypes and GPUs, whether they require gradients, and whether all are
    distinct. A guard takes a tenth of the time of such checks in Python.
    """
    guards: Any = torch._C._dynamo.guards.TensorGuards  # noqa: SLF001 - with which PyTorch guards its own graphs
    check: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@cache
def guards_tell() -> bool:
    """Try PyTorch's guards once; return whether they distinguish everything that a decision depends on."""
    told: list[bool] = []
    # In a new thread no mode is on, such as those of a compiled graph, in which the trial would fail.
    trial = Thread(target=lambda: told.append(_guards_tell()))
    trial.start()
    trial.join()
    return told == [True]


def _guards_tell() -> bool:
    plainly = torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False)
    with plainly[0], plainly[1], plainly[2], torch._C.DisableTorchFunction():  # noqa: SLF001 - no public way
        x = torch.zeros(2, 3, device="cpu")
        strange = torch.zeros(2, 3, dtype=torch.complex64, device="cpu").conj().imag
        others = (x[:1], x.new_zeros(3, 2).t(), x.double(), x.to("meta"), strange, Parameter(x), Parameter(x, False))
        try:
            check = _guard((x,))
            told = [check(x.clone()), *[not check(other) for other in (*others, x.clone().requires_grad_())]]
            told.append(not _guard((x, x.clone()))(x, x))
            with torch.autocast("cpu", torch.bfloat16):
                told.append(not check(x))
            told.append(bool(torch.vmap(lambda _: x.new_full((), not check(x)))(x).all()))
        except Exception:  # noqa: BLE001 - whatever another version of PyTorch raises; calls then have keys
            return False
    return all(told)


def reading(at: int, source: Source) -> str:
    """Return the line of code that gets the address of a kernel's input, after a copy if necessary."""
    x, view = f"t{source.tensor}", source.view
    if view is None:
        return f"    p{at} = {x}.data_ptr() + {source.offset}"
    return (
        f"    k{at} = {f'{x}.contiguous()' if view.is_whole else f'copied{at}({x})'}\n        p{at} = k{at}.data_ptr()"
    )


def aligned(sources: Sequence[Source], *tensors: Tensor) -> tuple[Any, ...]:
    """Return the addresses of copies of all inputs, and the copies, which must live until the launch."""
    copies = [one.copied(tensors[one.tensor]) for one in sources]
    return *[x.data_ptr() for x in copies], copies


def contiguous(shape: Shape) -> Shape:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def launches(count: int, addresses: Sequence[str], mapped: Sequence[int] = ()) -> list[str]:
    """Return the lines that launch this number of kernels with these addresses, with the names of `Ready.planned`.

    `mapped` gives, for each tensor map, the index of its address.
    """
    every, maps = range(count), range(len(mapped))
    lines = ["    try:", "        own = pop()", "    except IndexError:", "        own = arguments()"]
    names = "".join(numbered(letter, every) for letter in "cra")
    lines.append(f"    places, {names}{numbered('m', maps)}= own")
    lines += [f"    places[{at}] = {address}" for at, address in enumerate(addresses)]
    lines += [f"    m{at}(places[{place}])" for at, place in enumerate(mapped)]
    lines.append("    on = stream(index)")
    for at in every:
        lines += [f"    c{at}.stream = on", f"    if code := enqueue(r{at}, f{at}, a{at}, None):"]
        lines.append(f"        again(code, r{at}, f{at}, a{at}, index)")
    return [*lines, "    append(own)"]


def on_device(device: torch.device, call: Run, *tensors: Tensor) -> Any:
    with torch.cuda.device(device):
        return call(*tensors)


def allocator(device: torch.device) -> Callable[[Shape, Shape, torch.dtype], Tensor]:
    """Return a function that allocates a tensor on a device. A GPU must be the current device."""
    # Graphs of torch.compile use this function, too; it takes half the time of the public function.
    if quick := getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None):  # noqa: SLF001
        return quick  # type: ignore[no-any-return]
    return lambda shape, stride, dtype: torch.empty_strided(shape, stride, dtype=dtype, device=device)
