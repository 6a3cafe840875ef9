"""Functions with PyTorch's signatures agree with PyTorch at random calls; kernels run on the emulated machine."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives, winning

from archive import library
from evolve.export.families import forms
from evolve.export.template import checks
from evolve.export.template import forms as forms_module
from evolve.export.template.checks import drawn
from evolve.export.template.comparing import close
from evolve.export.template.dispatch import Primitive
from evolve.export.template.drawn import copied, tensors
from evolve.export.template.extent import LeftOutError, Setting
from evolve.export.template.forms import Form
from evolve.export.template.functions import Function, Functions, own
from evolve.export.template.options import options
from evolve.export.template.recipes import RECIPES
from evolve.export.template.unrolled import ELSEWHERE, REFUSALS
from reference_ops import catalog

CPU = torch.device("cpu")
CALLS = 6
FORMS = {form.name: form for form in forms()}
# On a CPU, PyTorch's cells return states in the order of the given state's dims; on a GPU, they are contiguous.
ELSEWHERE_IN_MEMORY = ("gru_cell", "lstm_cell")
QUICK = ("softmax", "layer_norm", "max_pool2d", "topk", "conv2d")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in sorted(FORMS)]


@pytest.fixture(scope="module", params=EACH)
def function(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Function, EmulatedMachine]:
    form: Form = FORMS[request.param]
    machine = EmulatedMachine()
    backward = [name for op in form.ops for name in catalog.load(op).backward]
    ops = dict.fromkeys([*form.ops, *backward])
    return Function(form, primitives(ops, tmp_path_factory.mktemp(form.name), machine)), machine


@pytest.fixture(scope="module")
def calls(request: pytest.FixtureRequest) -> int:
    return 4 * CALLS if request.config.getoption("--exhaustive") else CALLS


def test_random_calls_agree_with_pytorch(function: tuple[Function, EmulatedMachine], calls: int) -> None:
    called, machine = function
    checks.random_calls(called, Setting(CPU, calls, 0))
    assert machine.launched, "no call ran a kernel"


def test_results_have_the_memory_layout_of_pytorchs(function: tuple[Function, EmulatedMachine], calls: int) -> None:
    """With another layout, a view that works on PyTorch's result would raise."""
    called, _ = function
    if called.form.name in ELSEWHERE_IN_MEMORY:
        pytest.skip("on a CPU, PyTorch's states lie as the given ones")
    for number in range(calls):
        given, _ = drawn(called, number)
        with torch.no_grad():
            try:
                expected = called.form.pytorch(*copied(given).arguments, **copied(given).named)
            except REFUSALS:  # on a CPU, PyTorch lacks some ops in 16 bits, or for some strides
                continue
            assert strides(called(*given.arguments, **given.named)) == strides(expected)


def test_gradients_of_random_calls_agree_with_pytorch(function: tuple[Function, EmulatedMachine], calls: int) -> None:
    called, _ = function
    with suppress(LeftOutError):
        checks.gradients(called, Setting(CPU, calls // 2, 0))


def strides(result: Any) -> list[list[int]]:
    """Return the strides of dims that have several elements."""
    pairs = [zip(x.stride(), x.shape, strict=True) for x in tensors(result) if x.numel()]
    return [[stride for stride, size in of_dims if size > 1] for of_dims in pairs]


@pytest.mark.parametrize(
    "name", ["conv2d", "conv_transpose3d", "max_pool2d", "avg_pool1d", "interpolate", "batch_norm"]
)
def test_channels_that_are_last_in_memory_remain_last(tmp_path: Path, name: str) -> None:
    called = Function(FORMS[name], primitives(FORMS[name].ops, tmp_path, EmulatedMachine(by_reference=True)))
    compared = 0
    for number in range(20):
        given, dtype = drawn(called, number)
        x, *rest = given.arguments
        if dtype is torch.float32 and x.dim() > 2 and all(size > 1 for size in x.shape):
            arguments = (x.movedim(1, -1).contiguous().movedim(-1, 1), *rest)
            with torch.no_grad():
                expected = called.form.pytorch(*arguments, **given.named)
                assert strides(called(*arguments, **given.named)) == strides(expected)
            compared += 1
    assert compared


OWN = [name for name in catalog.names() if not any(name in form.ops for form in FORMS.values())]


@pytest.mark.parametrize("name", [*sorted(FORMS), *(pytest.param(one, marks=pytest.mark.exhaustive) for one in OWN)])
def test_many_random_calls_agree_where_pytorch_runs_in_place_of_kernels(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """There are more calls than could be compiled. They test the code around kernels: folding, copies and plans."""
    ops = FORMS[name].ops if name in FORMS else (name,)
    backward = [one for op in ops for one in catalog.load(op).backward]
    known = primitives(dict.fromkeys([*ops, *backward]), tmp_path, EmulatedMachine(by_reference=True))
    called = Function(FORMS.get(name) or own(known[name].op, known[name]), known)
    setting = Setting(CPU, 50 if request.config.getoption("--exhaustive") else 12, 12)
    checks.random_calls(called, setting)
    with suppress(LeftOutError):
        checks.gradients(called, setting)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_every_form_is_called_at_random(name: str) -> None:
    assert name in RECIPES


def test_a_function_computes_empty_and_single_elements(tmp_path: Path) -> None:
    softmax = Function(FORMS["softmax"], primitives(["softmax"], tmp_path, EmulatedMachine()))
    for shape in ((0, 5), (5, 0), (1, 1), (1,), ()):
        x = torch.randn(shape)
        close(softmax(x, -1), torch.softmax(x, -1), x.dtype)


def test_wrong_arguments_raise_the_error_of_pytorch(tmp_path: Path) -> None:
    softmax = Function(FORMS["softmax"], primitives(["softmax"], tmp_path, EmulatedMachine()))
    with pytest.raises(IndexError, match="Dimension out of range"):
        softmax(torch.randn(3, 5), 7)
    assert softmax.attempt((torch.randn(3, 5), 7), {}) is ELSEWHERE


class Subclass(torch.Tensor):
    """A tensor of another kind."""


def test_tensors_without_plain_memory_are_left_to_pytorch(tmp_path: Path) -> None:
    machine = EmulatedMachine()
    ops = primitives(["softmax", "topk"], tmp_path, machine)
    softmax = Function(FORMS["softmax"], ops)
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    close(softmax(nested, -1).to_padded_tensor(0), torch.softmax(nested, -1).to_padded_tensor(0), torch.float32)
    assert type(softmax(torch.randn(3, 5).as_subclass(Subclass), -1)) is Subclass
    assert Function(FORMS["topk"], ops)(torch.randn(3, 5), 0).values.shape == (3, 0)
    assert not machine.launched


def test_a_function_is_a_node_of_a_graph_that_fx_traces(tmp_path: Path) -> None:
    softmax = Function(FORMS["softmax"], primitives(["softmax"], tmp_path, EmulatedMachine()))
    traced = torch.fx.symbolic_trace(lambda x: softmax(x, -1))
    x = torch.randn(3, 5)
    close(traced(x), torch.softmax(x, -1), x.dtype)


def test_vmap_forward_mode_and_double_backward_agree_with_pytorch(tmp_path: Path) -> None:
    ops = primitives(["softmax", "softmax_backward"], tmp_path, EmulatedMachine())
    softmax = Function(FORMS["softmax"], ops)
    x = torch.randn(3, 4, 5, dtype=torch.float32)
    close(torch.vmap(partial(softmax, dim=-1))(x), torch.softmax(x, -1), x.dtype)
    jvps = [torch.func.jvp(partial(called, dim=-1), (x,), (x.cos(),)) for called in (softmax, torch.softmax)]
    close(jvps[0], jvps[1], x.dtype)
    twice = []
    for function in (softmax, torch.softmax):
        given = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(given, -1).square().sum(), given, create_graph=True)
        twice.append(torch.autograd.grad(first.square().sum(), given)[0])
    close(twice[0], twice[1], x.dtype)


def test_only_requested_gradients_are_computed(tmp_path: Path) -> None:
    machine = EmulatedMachine()
    ops = primitives(["rms_norm", "rms_norm_backward"], tmp_path, machine)
    norm = Function(FORMS["rms_norm"], ops)
    x, weight = torch.randn(5, 16, requires_grad=True), torch.ones(16)
    norm(x, (16,), weight, 1e-6).sum().backward()
    assert weight.grad is None
    assert [kernel == ops["rms_norm_backward"].entry.kernels[0].id for kernel in machine.launched] == [False, True]


def test_a_sum_over_columns_runs_the_kernel_for_columns(tmp_path: Path) -> None:
    machine = EmulatedMachine()
    ops = primitives(["sum", "sum_columns"], tmp_path, machine)
    total = Function(FORMS["sum"], ops)
    x = torch.randn(6, 8)
    close(total(x, 0), x.sum(0), x.dtype)
    assert machine.launched == [ops["sum_columns"].entry.kernels[0].id]


def test_an_op_that_pytorch_lacks_accepts_more_dims(tmp_path: Path) -> None:
    ops = primitives(["swiglu"], tmp_path, EmulatedMachine())
    (swiglu,) = Functions([], ops).values()
    gate, up = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    close(swiglu(gate, up), torch.nn.functional.silu(gate) * up, gate.dtype)
    assert swiglu.explain((gate, up), {}).kernel


def test_several_layers_and_directions_are_composed_of_single_ones(tmp_path: Path) -> None:
    machine = EmulatedMachine()
    gru = Function(FORMS["gru"], primitives(["gru"], tmp_path, machine))
    layer = torch.nn.GRU(4, 8, num_layers=2, bidirectional=True)
    x, hx, weights = torch.randn(5, 3, 4), torch.randn(4, 3, 8), list(layer.parameters())
    given: Any = (x, hx, weights, True, 2, 0.0, False, True, False)
    with torch.no_grad():
        for got, expected in zip(gru(*given), torch.gru(*given), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert len(machine.launched) == 4
    assert gru.explain(given, {}).kernel


def test_a_kernel_must_save_more_time_than_the_copies_around_it_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = EmulatedMachine()  # its kernels take 50 us, and PyTorch takes 100 us
    softmax = Function(FORMS["softmax"], primitives(["softmax"], tmp_path, machine))
    x = torch.randn(8, 16)
    for call_us, dim, runs in ((8.0, 0, True), (30.0, 0, False), (30.0, 1, True), (60.0, 1, True)):
        monkeypatch.setattr(forms_module, "CALL_US", call_us)
        softmax = Function(FORMS["softmax"], softmax.primitives)
        machine.launched.clear()
        close(softmax(x, dim), torch.softmax(x, dim), x.dtype)
        assert bool(machine.launched) == runs


def test_a_pinned_kernel_runs_although_it_saves_nothing(tmp_path: Path) -> None:
    machine = EmulatedMachine()
    primitive = primitives(["softmax"], tmp_path, machine)["softmax"]
    (shipped,) = primitive.entry.kernels
    x = torch.randn(8, 16)
    with options(pin={"softmax": shipped.id}), torch.no_grad():
        slower = [replace(one, times=replace(one.times, median_us=200.0)) for one in shipped.measured]
        entry = replace(primitive.entry, kernels=(replace(shipped, measured=tuple(slower)),))
        pinned = Primitive(primitive.op, entry, tmp_path, machine)
        for one in (x, x.t()):
            close(pinned((one,), {})[0], torch.softmax(one, -1), x.dtype)
            assert not pinned.loses((one.to("meta"),), x.device, {})
    assert len(machine.launched) == 2


@pytest.mark.parametrize(("call_us", "runs"), [(40.0, True), (60.0, False)])
def test_a_kernel_must_save_more_time_than_the_work_after_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call_us: float, runs: bool
) -> None:
    machine = EmulatedMachine()  # its kernels take 50 us, and PyTorch takes 100 us
    linear = Function(FORMS["linear"], primitives(["skinny_gemm"], tmp_path, machine))
    monkeypatch.setattr(forms_module, "CALL_US", call_us)
    given = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    with torch.no_grad():
        torch.testing.assert_close(linear(*given), torch.nn.functional.linear(*given))
    assert bool(machine.launched) == runs
    assert bool(linear.explain(given, {}).kernel) == runs


def test_a_kernel_with_tensor_maps_reads_tensors_wherever_they_begin_and_refuses_other_strides(tmp_path: Path) -> None:
    op, machine = catalog.load("gemm"), EmulatedMachine()
    kernel = next(one for one in library.shipped("gemm") if one.plan.tensor_maps)
    primitive = Primitive(op, winning(op, kernel, tmp_path), tmp_path, machine)
    matmul = Function(FORMS["matmul"], {"gemm": primitive})
    for shift, size in ((0, 40), (0, 40), (1, 40), (8, 40), (0, 36)):  # a tensor map cannot have a stride of 72 bytes
        whole = torch.randn(24 * size + shift, dtype=torch.float32).bfloat16()
        a, b = whole[shift:].reshape(24, size), torch.randn(size, 16).bfloat16()
        torch.testing.assert_close(matmul(a, b), a @ b, rtol=2e-2, atol=2e-2)
    assert machine.launched == [kernel.id] * 4
