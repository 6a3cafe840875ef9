"""Checks of a package against PyTorch: of the results and gradients of its functions, and of its kernels."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.comparing import agree, close, raises
from evolve.export.template.dispatch import Primitive
from evolve.export.template.drawn import (
    DTYPES,
    Draw,
    Drawn,
    changed,
    copied,
    emptied,
    erased,
    learning,
    mapped,
    overwritten,
    placed,
    tensors,
)
from evolve.export.template.extent import (
    NO_KERNEL,
    LeftOutError,
    Setting,
    inputs_of,
    sizes_of_kernel,
    with_kernel,
)
from evolve.export.template.functions import Function, Functions
from evolve.export.template.options import options
from evolve.export.template.recipes import RECIPES
from evolve.export.template.unrolled import REFUSALS
from reference_ops.op import Workload
from reference_ops.precision import TORCH_DTYPES

OPAQUE = "opaque op"
STEP = 1e-2  # step of finite differences in float32
FAST_CALLS = 100  # more than the fast mode of gradcheck needs: two per input and one per output, and a few
MADE_TIMES = 3  # number of times that each call with gradients is made
LACKING = re.compile("not implemented for|view size is not compatible")  # text in errors about dtypes or strides


def drawn(function: Function, number: int) -> tuple[Drawn, torch.dtype]:
    """Return a random call of a function; the same number gives the same call."""
    rng = random.Random(f"{function.form.name} {number}")
    if function.form.name in RECIPES:
        found = RECIPES[function.form.name](Draw(rng, rng.choice(DTYPES)))
        dtypes = [x.dtype for x in tensors([*found.arguments, *found.named.values()]) if x.is_floating_point()]
        return found, min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    (primitive,) = function.primitives.values()
    workload = rng.choice([*primitive.op.emulated, *primitive.op.awkward])
    inputs, parameters = inputs_of(primitive.op, workload, Setting(torch.device("cpu"), 1, rng.randrange(2**31)))
    return Drawn(inputs, parameters), TORCH_DTYPES[workload.dtype]


def random_calls(function: Function, setting: Setting) -> str:
    """Compare random calls with PyTorch: of any rank, shape, strides, dtype and flags. Return how many ran kernels."""
    ran = done = 0
    for given, dtype in _calls(function, setting):
        for_pytorch, again = copied(given), copied(given)
        with torch.no_grad():
            try:
                expected = function.form.pytorch(*for_pytorch.arguments, **for_pytorch.named)
            except Exception as error:  # noqa: BLE001 - whatever PyTorch raises, the function must raise
                if not LACKING.search(str(error)):
                    raises(function, given, type(error))
                continue
            ran += bool(function.explain(given.arguments, given.named).kernel)
            got = function(*given.arguments, **given.named)
        close(_exact(function, got), _exact(function, expected), dtype, tf32=_tf32(function, setting))
        close(given.arguments, for_pytorch.arguments, dtype)  # tensors changed in place, such as running statistics
        exact = [x.clone() for x in tensors(_exact(function, expected))]
        overwritten(list(tensors(got)), list(tensors(expected)), list(tensors(for_pytorch.arguments)))
        # results must have separate memory if PyTorch's results have
        close(given.arguments, for_pytorch.arguments, dtype)
        changed(given, erased)  # the next call must not read data of this call
        with torch.no_grad():
            got = function(*again.arguments, **again.named)
        close(_exact(function, got), exact, dtype, tf32=_tf32(function, setting))
        done += 1
    return f"{ran} of {done} calls by kernels"


def gradients(function: Function, setting: Setting) -> str:
    """Compare the gradients of random calls with PyTorch's, for some of the tensors or all, and for changed results.

    Each call is made several times, so that its forward and its backward also run in the form of a repeated call.
    """
    done = 0
    for number, (given, dtype) in enumerate(_calls(function, setting), setting.seed):
        seed = f"{function.form.name} {number}"
        done += all(_gradients_agree(function, copied(given), dtype, (seed, setting)) for _ in range(MADE_TIMES))
    if not done:
        raise LeftOutError("it has no gradient")
    return f"{done} calls"


def _gradients_agree(function: Function, given: Drawn, dtype: torch.dtype, drawn_as: tuple[str, Setting]) -> bool:
    """Compare the gradients of a call with PyTorch's. Return whether there are any."""
    seed, setting = drawn_as
    ours, theirs = (learning(one, random.Random(seed)) for one in (given, copied(given)))
    is_changed = not random.Random(seed + " is changed").randrange(4)
    try:
        expected = function.form.pytorch(*theirs.arguments, **theirs.named)
        flows = [x.requires_grad for x in tensors(expected)]
        got = function(*ours.arguments, **ours.named) if any(flows) else None
        if function.form.own and got is not None:  # statistics for a backward have no gradient
            flows = [flow and x.requires_grad for flow, x in zip(flows, tensors(got), strict=True)]
        if not any(flows):
            return False
        _differentiated(expected, flows, is_changed)
    except REFUSALS:  # PyTorch has no gradient of most backward ops, or for a running statistic
        return False
    if [x.requires_grad for x in tensors(got)] != flows and not function.form.own:
        raise AssertionError("other results have gradients than with PyTorch")
    try:
        _differentiated(got, flows, is_changed)
    except RuntimeError as error:
        if not is_changed or "modified by an inplace operation" not in str(error):
            raise
        return False  # the backward reads the result
    found, wanted = ([x.grad for x in tensors(one.arguments)] for one in (ours, theirs))
    if [x is None for x in found] != [x is None for x in wanted]:
        raise AssertionError("other arguments get gradients than with PyTorch")
    of_them = [[x for x in side if x is not None] for side in (found, wanted)]
    exactly = partial(_exact_gradients, function, learning(copied(given), random.Random(seed)), flows, is_changed)
    agree(of_them[0], of_them[1], dtype, exactly, tf32=_tf32(function, setting))
    return True


def _exact_gradients(function: Function, given: Drawn, flows: Sequence[bool], is_changed: bool) -> list[Tensor]:
    wide = changed(given, lambda x: x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x)
    _differentiated(function.form.pytorch(*wide.arguments, **wide.named), flows, is_changed)
    return [x.grad for x in tensors(wide.arguments) if x.grad is not None]


def _differentiated(result: Any, flows: Sequence[bool], is_changed: bool) -> None:
    """Call the backward of the results that have gradients, sometimes after changing the results in place."""
    outs = [out for out, flow in zip(tensors(result), flows, strict=True) if flow]
    if is_changed:
        outs = [out.mul_(2) for out in outs]
    weights = [torch.linspace(0.5, 1.5, out.numel(), device=out.device).view(out.shape).to(out.dtype) for out in outs]
    torch.autograd.backward(outs, weights)


def empty_inputs(function: Function, setting: Setting) -> str:
    """Compare calls whose first tensor is empty with PyTorch: the result must be the same, or an error as well."""
    if function.form.own:  # PyTorch's internal functions, such as backwards, do not check that sizes fit
        raise LeftOutError("it takes no empty tensors")
    for given, dtype in _calls(function, setting):
        first = next(tensors(given.arguments), None)
        if first is None or not first.dim() or (setting.device.type != "cpu" and _indexed(first, given)):
            continue
        empty = Drawn(mapped(given.arguments, partial(emptied, first)), given.named)
        with torch.no_grad():
            try:
                expected = function.form.pytorch(*empty.arguments, **empty.named)
            except Exception as error:  # noqa: BLE001 - whatever PyTorch raises, the function must raise
                raises(function, empty, type(error))
                continue
            close(function(*empty.arguments, **empty.named), expected, dtype)
    return ""


def _indexed(first: Tensor, given: Drawn) -> bool:
    """Return whether other arguments may be indices of the first.

    A GPU checks indices while a kernel runs: an index of an empty tensor makes the GPU unusable for the process.
    """
    others = (x for x in tensors([*given.arguments, *given.named.values()]) if x is not first)
    return any(x.numel() and not x.is_floating_point() for x in others)


def finite_differences(function: Function, setting: Setting) -> str:
    """Compare gradients with finite differences (`torch.autograd.gradcheck`) in float32, if PyTorch's pass."""
    done = 0
    for given, dtype in _calls(function, setting):
        if dtype is not torch.float32 or not any(x.is_floating_point() for x in tensors(given.arguments)):
            continue
        if _differences_agree(function.form.pytorch, given):
            if not _differences_agree(function, given):
                raise AssertionError("finite differences do not agree with the gradients, but PyTorch's do")
            done += 1
    if not done:
        raise LeftOutError("PyTorch's own gradients do not pass, or there are none")
    return f"{done} calls"


def _differences_agree(function: Callable[..., Any], given: Drawn) -> bool:
    flat = list(tensors(given.arguments))
    learned = [learning(Drawn((x.clone(),), {})).arguments[0] for x in flat]
    calls = itertools.count()

    def called(*values: Tensor) -> Any:
        # To describe a difference, gradcheck moves each element of each input by itself, which can take hours.
        if next(calls) >= FAST_CALLS:
            raise RuntimeError("the gradients differ")
        places = iter(values)
        found = function(*mapped(given.arguments, lambda _: next(places)), **given.named)
        return tuple(out for out in tensors(found) if out.is_floating_point())

    steps: dict[str, Any] = {"eps": STEP, "atol": 2e-2, "rtol": 5e-2, "nondet_tol": 1e-3}
    try:
        return torch.autograd.gradcheck(called, learned, **steps, raise_exception=False, fast_mode=True)
    except (RuntimeError, TypeError, ValueError):  # there is nothing to differentiate, or the call is refused
        return False


def every_kernel(primitive: Primitive, setting: Setting) -> str:
    """Compare each kernel with PyTorch at sizes that it accepts and at others; deterministic ones must repeat bits."""
    if not primitive.entry.kernels:
        raise LeftOutError(NO_KERNEL)
    if setting.device.type != primitive.device_type:
        raise LeftOutError(f"the inputs are on the {setting.device.type.upper()}")
    counts, reason = Counter[str](), ""
    for shipped in primitive.entry.kernels:
        with options(pin={primitive.op.name: shipped.id}):
            for workload in sizes_of_kernel(primitive, shipped, setting):
                setting.need_time()
                inputs, parameters = inputs_of(primitive.op, workload, setting)
                found = primitive.explain(inputs, parameters)
                _compared(primitive, inputs, parameters, workload)
                counts["inside" if found.kernel else "outside"] += 1
                reason = reason or ("" if found.kernel else found.reason)
                if found.kernel and all(one.deterministic for one in shipped.measured):
                    _repeated(primitive, inputs, parameters, found.kernel)
                    counts["repeated"] += 1
    if not counts["inside"]:
        raise LeftOutError(reason)
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _compared(primitive: Primitive, inputs: tuple[Tensor, ...], parameters: dict[str, Any], workload: Workload) -> None:
    dtype = TORCH_DTYPES[workload.dtype]

    def exactly(at: int) -> Tensor:
        return primitive.pytorch(tuple(x.double() if x.is_floating_point() else x for x in inputs), parameters)[at]

    pairs = zip(primitive.op.outputs, primitive(inputs, parameters), primitive.pytorch(inputs, parameters), strict=True)
    for at, (spec, out, expected) in enumerate(pairs):
        if spec.name not in primitive.op.baseline_free:
            try:
                agree(out, expected, dtype, partial(exactly, at), tf32=primitive.op.tf32)
            except AssertionError as error:
                raise AssertionError(f"{spec.name} at {workload.key}: {error}") from error


def _repeated(primitive: Primitive, inputs: tuple[Tensor, ...], parameters: dict[str, Any], kernel: str) -> None:
    first, second = (_run(primitive, inputs, parameters) for _ in range(2))
    bits = [[x.contiguous().view(-1).view(torch.uint8) for x in outputs] for outputs in (first, second)]
    if not all(map(torch.equal, *bits)):
        raise AssertionError(f"kernel {kernel} is declared deterministic, but two runs differ")


def another_stream(primitive: Primitive, setting: Setting) -> str:
    """Run a kernel on another stream, after long work on that stream."""
    _need_gpu(setting)
    inputs, parameters = with_kernel(primitive, setting)
    expected = _run(primitive, inputs, parameters)
    side = torch.cuda.Stream(setting.device)
    side.wait_stream(torch.cuda.current_stream(setting.device))
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)  # noqa: SLF001 - there is no other way to keep a stream busy
        late = tuple(x.clone() for x in inputs)
        found = _run(primitive, late, parameters)
    side.synchronize()
    close(found, expected, inputs[0].dtype, tf32=primitive.op.tf32)
    return ""


def capture_and_replay(primitive: Primitive, setting: Setting) -> str:
    """Capture a kernel in a CUDA graph, and replay it with changed inputs."""
    _need_gpu(setting)
    inputs, parameters = with_kernel(primitive, setting)
    _run(primitive, inputs, parameters)
    others = tuple(x.flip(0) if x.is_floating_point() and x.dim() else x.clone() for x in inputs)
    expected = _run(primitive, others, parameters)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _run(primitive, inputs, parameters)
    for x, other in zip(inputs, others, strict=True):
        x.copy_(other)
    graph.replay()
    torch.cuda.synchronize(setting.device)
    close(found, expected, inputs[0].dtype, tf32=primitive.op.tf32)
    return ""


def second_device(primitive: Primitive, setting: Setting) -> str:
    """Run a kernel on another GPU than the current one."""
    _need_gpu(setting)
    if (count := torch.cuda.device_count()) < 2:
        raise LeftOutError("there is no second GPU")
    inputs, parameters = with_kernel(primitive, setting)
    other = torch.device("cuda", (torch.cuda.current_device() + 1) % count)
    found = primitive(tuple(x.to(other) for x in inputs), parameters)
    close([out.to(setting.device) for out in found], _run(primitive, inputs, parameters), inputs[0].dtype, tf32=True)
    return ""


def opaque_op(functions: Functions, primitive: Primitive, setting: Setting) -> str:
    """Let `torch.library.opcheck` test the op that graphs contain, and its gradient."""
    registry = functions.registry
    if registry is None or not registry.define(primitive.op.name):
        raise LeftOutError("graphs contain no op for it")
    inputs, parameters = inputs_of(primitive.op, (*primitive.op.emulated, *primitive.op.gpu)[0], setting)
    if any(x.dtype.itemsize == 1 and x.is_floating_point() for x in inputs):
        raise LeftOutError("opcheck cannot compare floats of 8 bits")
    op = getattr(getattr(torch.ops, registry.namespace), primitive.op.name).default
    values = [parameters[name] for name in primitive.op.parameters]
    learns = bool(primitive.gradients.steps)  # a backward op has no gradient
    given = [x.requires_grad_(learns and x.is_floating_point()) for x in inputs]
    torch.library.opcheck(
        op, (*given, *values), test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
    )
    return ""


def _calls(function: Function, setting: Setting) -> Iterator[tuple[Drawn, torch.dtype]]:
    for number in range(setting.seed, setting.seed + setting.calls):
        setting.need_time()
        given, dtype = drawn(function, number)
        yield changed(given, partial(placed, device=setting.device)), dtype


def _exact(function: Function, result: Any) -> Any:
    """Return the outputs that are fully determined. PyTorch may, for example, order equal values in any way."""
    if not function.form.own:
        return result
    (primitive,) = function.primitives.values()
    pairs = zip(primitive.op.outputs, tensors(result), strict=True)
    return [out for spec, out in pairs if spec.name not in primitive.op.baseline_free]


def _tf32(function: Function, setting: Setting) -> bool:
    return setting.device.type == "cuda" and any(one.op.tf32 for one in function.primitives.values())


def _need_gpu(setting: Setting) -> None:
    if setting.device.type != "cuda":
        raise LeftOutError("there is no GPU")


def _run(primitive: Primitive, inputs: tuple[Tensor, ...], parameters: dict[str, Any]) -> tuple[Tensor, ...]:
    outputs = primitive.run(inputs, parameters)
    if outputs is None:
        raise AssertionError(f"PyTorch runs instead of a kernel: {primitive.explain(inputs, parameters).reason}")
    return outputs


OF_FUNCTIONS = {
    "random calls": random_calls,
    "gradients": gradients,
    "differences": finite_differences,
    "empty inputs": empty_inputs,
}
OF_KERNELS = {
    "every kernel": every_kernel,
    "another stream": another_stream,
    "capture and replay": capture_and_replay,
    "second device": second_device,
}
