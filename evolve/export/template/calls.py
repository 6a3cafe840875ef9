"""Arguments of a call: functions that determine their workload, or the reason why no kernel can run."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import Parameter

from reference_ops.op import Number, Op, Workload
from reference_ops.precision import TORCH_DTYPES

ALIGNMENT = 16  # alignment in bytes on which every kernel relies
TIME, STEPS = "time", 2
RECURRENT = {TIME, "hidden"}  # names of a recurrent layer's dims
TRANSFORMED = "torch.func transforms the call; under vmap, PyTorch batches its own op"
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class NoKernelError(Exception):
    """Raised when PyTorch runs instead of a kernel; the message says why."""


class MissingError(NoKernelError):
    """Raised when this machine lacks a requirement of every kernel, such as a driver."""


def obstacle(
    inputs: Sequence[torch.Tensor], parameters: Mapping[str, Number], op: Op, device_type: str = "cuda"
) -> str:
    """Return the reason why PyTorch must run regardless of the sizes; empty if a kernel may run."""
    found = _state() or _inputs(inputs, device_type) or _not_kept(inputs)
    return found or parameter_fault(parameters, op) or _precision(inputs, op)


def _state() -> str:
    if torch._C._get_tracing_state() is not None:  # noqa: SLF001 - the public way takes a microsecond
        return "the call is being traced"
    # These modes pass tensors without separate memory, or ignore the results of a kernel.
    if torch._C._len_torch_dispatch_stack():  # noqa: SLF001 - there is no public way to ask
        return "a dispatch mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001 - there is no public way to ask
        return TRANSFORMED
    if forward_ad._current_level >= 0:  # noqa: SLF001 - there is no public way to ask
        return "forward-mode differentiation is on"
    return ""


def _inputs(inputs: Sequence[torch.Tensor], device_type: str) -> str:
    device = None
    for x in inputs:
        if type(x) is not torch.Tensor and type(x) is not Parameter:
            return "an input is not a plain tensor"
        if device is None:
            device = x.device
            if device.type != device_type:
                return placed(device)
        elif x.device != device:
            return "the inputs are on different devices"
        if reason := _special(x):
            return reason
    return ""


def placed(device: torch.device) -> str:
    """Return the reason why no kernel takes inputs on a device."""
    where = "on the CPU" if device.type == "cpu" else f"on the device {device}, not on a GPU that kernels run on"
    return "the inputs have no values (device meta)" if device.type == "meta" else f"the inputs are {where}"


def _special(x: torch.Tensor) -> str:
    """Return the reason why a tensor that looks plain has no separate memory; empty if it has."""
    if x.layout is not torch.strided or x.is_nested:
        return "an input is sparse or nested"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):  # noqa: SLF001 - there is no public way to ask
        return "an input comes from a transform of torch.func that has ended"
    if torch._C._functorch.is_legacy_batchedtensor(x):  # noqa: SLF001 - there is no public way to ask
        return "an input is a batch of gradients, as torch.autograd.grad makes them with is_grads_batched"
    return ""


def _not_kept(inputs: Sequence[torch.Tensor]) -> str:
    """Return the reason why autograd refuses to keep an input for the backward; empty if it keeps all of them."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs) and any(x.is_inference() for x in inputs):
        return "an input was made in inference mode, so it cannot be kept for the backward"
    return ""


def _precision(inputs: Sequence[torch.Tensor], op: Op) -> str:
    if op.tf32 and inputs[0].dtype is torch.float32 and not torch.backends.cudnn.allow_tf32:
        return "TF32 is off for convolutions and recurrent layers, and the kernels may use it"
    return ""


def parameter_fault(parameters: Mapping[str, Number], op: Op) -> str:
    for name, measured in op.parameters.items():
        value = parameters[name]
        if type(value) is not int and not (type(value) is float and isinstance(measured, float)):
            return f"`{name}` is not a plain {type(measured).__name__}"
        if type(value) is int and not -(2**31) <= value < 2**31:
            return f"`{name}` does not fit in 4 bytes"
    return ""


def workload_of(op: Op, inputs: Sequence[torch.Tensor], parameters: Mapping[str, Number]) -> Workload:
    """Return the workload of a call. Raise a NoKernelError if its inputs do not fit the op."""
    sizes: dict[str, int] = {}
    for spec, x in zip(op.inputs, inputs, strict=True):
        if x.dim() != len(spec.dims):
            raise NoKernelError(f"`{spec.name}` has {x.dim()} dims, the kernels accept {len(spec.dims)}")
        sizes.update(zip(spec.dims, x.shape, strict=True))
    free = {x.dtype for spec, x in zip(op.inputs, inputs, strict=True) if not spec.dtype}
    if len(free) != 1 or not free <= NAMES.keys():
        raise NoKernelError("the inputs are of different dtypes" if len(free) > 1 else "no kernel accepts this dtype")
    given = tuple((name, type(value)(parameters[name])) for name, value in op.parameters.items())
    dtype, names = NAMES[free.pop()], [name for name, _ in op.gpu[0].dims]
    # the missing dims are dims of outputs only, such as the rows that a convolution returns
    if not sizes.keys() >= set(names):
        for spec, out in zip(op.outputs, _outputs(op, inputs, dict(given)), strict=False):
            sizes.update(zip(spec.dims, out.shape, strict=False))
    workload = Workload(dtype, tuple((name, sizes.get(name, 0)) for name in names), given)
    for spec, x in zip(op.inputs, inputs, strict=True):
        if x.dtype != TORCH_DTYPES[spec.dtype or workload.dtype] or tuple(x.shape) != _shape(op, workload, spec.name):
            raise NoKernelError(f"`{spec.name}` of {x.dtype}, {tuple(x.shape)}, does not fit {workload.key}")
    if 0 in sizes.values():
        raise NoKernelError("an input is empty")
    return workload


def check_outputs(op: Op, workload: Workload, inputs: Sequence[torch.Tensor]) -> None:
    """Raise a NoKernelError unless PyTorch accepts the call and returns the outputs that the op declares.

    A kernel therefore never runs if PyTorch raises an error, for example for the eight largest of four values.
    """
    fewer = _with_few_steps(workload)
    if fewer != workload:
        pairs = zip(op.inputs, inputs, strict=True)
        inputs = [torch.empty(_shape(op, fewer, spec.name), dtype=x.dtype, device="meta") for spec, x in pairs]
        workload = fewer
    outputs = _outputs(op, inputs, dict(workload.parameters))
    for spec, out in itertools.zip_longest(op.outputs, outputs):
        if spec is None or out is None:
            raise NoKernelError(f"the reference returns {len(outputs)} outputs, the op declares {len(op.outputs)}")
        if not out.numel():
            raise NoKernelError("an output is empty")
        expected = _shape(op, workload, spec.name)
        if tuple(out.shape) != expected or out.dtype != TORCH_DTYPES[spec.dtype or workload.dtype]:
            raise NoKernelError(
                f"the reference's `{spec.name}` is of {out.dtype}, {tuple(out.shape)}, not as declared: {workload.key}"
            )


def _with_few_steps(workload: Workload) -> Workload:
    """Return a small workload of a recurrent layer. PyTorch computes its steps one by one even without values."""
    if not dict(workload.dims).keys() >= RECURRENT:
        return workload
    return replace(
        workload, dims=tuple((dim, min(size, STEPS) if dim == TIME else size) for dim, size in workload.dims)
    )


def _outputs(op: Op, inputs: Sequence[torch.Tensor], parameters: Mapping[str, Number]) -> tuple[torch.Tensor, ...]:
    """Return the reference's outputs without values, from the meta device.

    Operations that the meta device lacks, such as bincount, are computed with the given inputs.
    """
    metas = [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in inputs]
    try:
        with torch.no_grad():
            try:
                outputs = op.reference(*metas, **parameters)
            except NotImplementedError:
                outputs = op.reference(*inputs, **parameters)
    except Exception as error:  # PyTorch then runs and raises the error to the caller
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        reason = f"{type(error).__name__}: {error}"
        raise NoKernelError(f"the reference refuses inputs of {shapes}: {reason}") from error
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def contiguous_outputs(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return PyTorch's outputs in the form of a kernel's outputs: contiguous, and in separate memory."""
    taken = {x.untyped_storage().data_ptr() for x in inputs}
    own = [out.clone() if out.untyped_storage().data_ptr() in taken else out for out in outputs]
    return tuple(out.contiguous() for out in own)


def autograd_inside() -> Any:
    """Return a context in which PyTorch may differentiate within an op, as for a recurrent layer's backward."""
    key = torch._C.DispatchKey.AutogradFunctionality  # noqa: SLF001 - there is no public way
    return torch._C._SetExcludeDispatchKeyGuard(key, False)  # noqa: SLF001


def _shape(op: Op, workload: Workload, tensor: str) -> tuple[int, ...]:
    try:
        return next(op.shape(spec, workload) for spec in (*op.inputs, *op.outputs) if spec.name == tensor)
    except (ArithmeticError, ValueError) as error:
        raise NoKernelError(f"the sizes of `{tensor}` cannot be computed: {error}") from error
