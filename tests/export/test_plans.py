"""Repeated calls, which are recognised by their key: they run a plan, but only where its result is the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor

from evolve.export.families import forms
from evolve.export.template import functions, unrolled
from evolve.export.template.deciding import Decision
from evolve.export.template.dispatch import Primitive
from evolve.export.template.functions import Function
from evolve.export.template.options import options
from reference_ops import catalog

FORMS = {form.name: form for form in forms()}


@dataclass
class Tried:
    """A function on an emulated machine that records every kernel that runs."""

    function: Function
    machine: EmulatedMachine

    def planned(self, *arguments: Any, **named: Any) -> bool:
        """Call the function, compare the result with PyTorch's, and return whether the call ran a plan."""
        before = len(self.machine.planned_launches)
        expected = self.function.form.pytorch(*arguments, **named)
        got = self.function(*arguments, **named)
        for out, exact in zip(each(got), each(expected), strict=True):
            assert (out.shape, out.stride(), out.dtype) == (exact.shape, exact.stride(), exact.dtype)
            torch.testing.assert_close(out, exact, rtol=1e-4, atol=1e-5)
        assert type(got) is type(expected)
        return len(self.machine.planned_launches) > before


def each(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def tried(folder: Path, name: str, *ops: str, machine: EmulatedMachine | None = None) -> Tried:
    machine = machine or EmulatedMachine()
    return Tried(Function(FORMS[name], primitives(ops or FORMS[name].ops, folder, machine)), machine)


X = torch.randn(4, 6, 8)
CALLS: dict[str, tuple[Any, ...]] = {
    "relu": (X,),
    "softmax": (X, -1),
    "layer_norm": (X, (8,), torch.rand(8), torch.rand(8)),
    "rms_norm": (X, [8], torch.rand(8), 1e-6),
    "topk": (X, 3),
    "max": (X, -1),
    "sum": (X, -1, True),
    "cross_entropy": (X[0], torch.arange(6) % 8),
    "embedding": (torch.arange(6) % 4, torch.rand(4, 8)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_of_a_kind_runs_a_plan(tmp_path: Path, name: str) -> None:
    found = tried(tmp_path, name)
    assert not found.planned(*CALLS[name])
    others = [x.clone() if isinstance(x, Tensor) else x for x in CALLS[name]]
    others[-1 if name == "embedding" else 0] = torch.randn(others[-1 if name == "embedding" else 0].shape)
    assert found.planned(*others)


@pytest.mark.parametrize("other", [X[:2], X.double(), X.transpose(0, 1), X[:, ::2]])
def test_another_shape_dtype_or_stride_is_another_call(tmp_path: Path, other: Tensor) -> None:
    found = tried(tmp_path, "relu")
    found.planned(X)
    assert not found.planned(other)


def test_tensors_in_another_order_in_memory_keep_their_order(tmp_path: Path) -> None:
    found = tried(tmp_path, "relu")
    assert [found.planned(torch.randn(4, 6, 8).transpose(0, 2)) for _ in range(2)] == [False, True]


def test_numbers_that_are_equal_may_be_other_arguments(tmp_path: Path) -> None:
    found = tried(tmp_path, "leaky_relu")
    x = torch.tensor([-1.0] * 16)
    for slope in (0.0, -0.0, 1, 1.0):
        assert not found.planned(x, slope)
        assert torch.equal(found.function(x, slope).signbit(), torch.nn.functional.leaky_relu(x, slope).signbit())


def test_a_list_may_change_between_calls(tmp_path: Path) -> None:
    found = tried(tmp_path, "layer_norm")
    shape, sizes = [8], ([6, 8], [8], [8])
    assert not found.planned(X, shape, torch.rand(8), torch.rand(8))
    took = []
    for shape[:] in sizes:
        took.append(found.planned(X, shape, torch.rand(shape), torch.rand(shape)))
    assert took == [False, True, True]


@pytest.mark.parametrize("device_type", ["cpu", "cuda"], ids=["by a kernel", "by PyTorch"])
def test_tensors_in_a_tuple_are_recognised_and_compared(tmp_path: Path, device_type: str) -> None:
    found = tried(tmp_path, "lstm_cell", machine=EmulatedMachine(device_type=device_type))
    cell = torch.nn.LSTMCell(5, 6)
    weights = (cell.weight_ih.data, cell.weight_hh.data, cell.bias_ih.data, cell.bias_hh.data)
    x, h, c = torch.randn(3, 5), torch.randn(3, 6), torch.randn(3, 6)
    recall = found.function.recall
    found.planned(x, (h, c), *weights)
    found.planned(x, (c.clone(), h), *weights)
    assert recall((x, (c, h), *weights), {}) is not None
    wide, strided = c.double(), torch.randn(6, 3).t()
    for states in ([h, c], (h,), (h, c, c), (h, wide), (h, strided), (h, None), (h, h), h):
        assert recall((x, states, *weights), {}) is None


def test_a_nested_tensor_beside_a_plain_one_gets_pytorchs_error(tmp_path: Path) -> None:
    found = tried(tmp_path, "mse_loss")
    plain = torch.randn(2, 3)
    found.planned(plain, torch.randn(2, 3))
    assert found.planned(plain, torch.randn(2, 3))
    with pytest.raises(RuntimeError):
        found.function(plain, torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]))


def test_a_tensor_that_escaped_from_a_transform_is_left_to_pytorch(tmp_path: Path) -> None:
    found = tried(tmp_path, "relu")
    found.planned(X)
    escaped = []
    torch.func.grad(lambda x: (escaped.append(x), x.sum())[1])(X)  # type: ignore[func-returns-value]
    assert not found.planned(escaped[0])
    assert "torch.func" in found.function.explain((escaped[0],), {}).reason


def test_arguments_given_by_name_are_distinguished(tmp_path: Path) -> None:
    found = tried(tmp_path, "softmax")
    assert [found.planned(torch.randn(4, 4), dim=dim) for dim in (1, 1, 0, 1)] == [False, True, False, True]
    assert not found.planned(torch.randn(4, 4), dim=1, dtype=None)
    assert [found.planned(input=torch.randn(4, 4), dim=1) for _ in range(2)] == [False, True]


def test_the_options_of_a_block_end_with_it(tmp_path: Path) -> None:
    found = tried(tmp_path, "relu")
    found.planned(X)
    with options(pin={"relu": "pytorch"}):
        assert [found.planned(X) for _ in range(2)] == [False, False]
    assert found.planned(X)


def test_forward_mode_and_dispatch_modes_are_recognised(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    found = tried(tmp_path, "relu")
    found.planned(X)
    with torch.autograd.forward_ad.dual_level():
        assert not found.planned(X)
    with FlopCounterMode(display=False):
        assert not found.planned(X)
    with torch.inference_mode():
        assert [found.planned(X) for _ in range(2)] == [False, True]
    assert found.planned(X)


def test_shapes_that_never_repeat_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolled, "MOST_SHAPES", 3)
    found = tried(tmp_path, "relu")
    for size in range(1, 8):
        found.planned(torch.randn(size))
    assert len(found.function._kinds.known) <= 3


def test_guards_that_distinguish_nothing_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unrolled.guards_tell.__wrapped__()
    monkeypatch.setattr(unrolled, "_guard", lambda _tensors: lambda *_: True)
    assert not unrolled.guards_tell.__wrapped__()


def test_without_guards_calls_have_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrolled, "guards_tell", lambda: False)
    found = tried(tmp_path, "softmax")
    assert [found.planned(torch.randn(4, 4), dim) for dim in (1, 1, 0, 1)] == [False, True, False, True]
    assert not found.function._kinds.known


def test_a_call_with_one_tensor_twice_does_not_decide_for_two(tmp_path: Path) -> None:
    found = tried(tmp_path, "mse_loss")
    other = torch.randn_like(X)
    assert [found.planned(X, x) for x in (X, other, other, X)] == [False] * 4


def test_two_tensors_are_distinguished(tmp_path: Path) -> None:
    found = tried(tmp_path, "mse_loss")
    assert [found.planned(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(3)] == [False, True, True]


def test_a_tensor_at_an_odd_address_is_copied(tmp_path: Path) -> None:
    found = tried(tmp_path, "relu")
    assert [found.planned(x) for x in (torch.randn(8), torch.randn(9)[1:], torch.randn(8))] == [False, True, True]


COPIED: dict[str, tuple[str, Callable[[], tuple[Any, ...]]]] = {
    "a transposed matrix": ("softmax", lambda: (torch.randn(8, 6).t(), -1)),
    "dims in another order": ("log_softmax", lambda: (torch.randn(4, 6, 8).permute(2, 0, 1), -1)),
    "each other element": ("relu", lambda: (torch.randn(4, 16)[:, ::2],)),
    "one element for all": ("mse_loss", lambda: (torch.randn(4, 8), torch.randn(1).expand(4, 8))),
    "parts of one tensor": ("mse_loss", lambda: torch.randn(4, 16).chunk(2, 1)),
    "a part that begins elsewhere": ("softmax", lambda: (torch.randn(3, 8, 6)[1].t(), -1)),
    "rows of one tensor": ("mse_loss", lambda: torch.randn(8, 4).chunk(2)),
}


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("case", COPIED)
def test_tensors_that_must_be_copied_for_a_kernel_are_recognized(tmp_path: Path, case: str, learns: bool) -> None:
    name, make = COPIED[case]
    backward = [one for op in FORMS[name].ops for one in catalog.load(op).backward]
    found = tried(tmp_path, name, *FORMS[name].ops, *backward)
    forward = {one.id for op in found.function.primitives.values() for one in op.entry.kernels}
    for planned in (0, 1, 2, 3):
        first, *rest = make()
        made = (first.detach().requires_grad_(learns), *rest)
        got, expected = (function(*made) for function in (found.function, FORMS[name].pytorch))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        if learns:
            grad = torch.randn(got.shape[::-1]).permute(tuple(range(got.dim()))[::-1])
            grads = [torch.autograd.grad(out, made[0], grad) for out in (got, expected)]
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
        assert len([one for one in found.machine.planned_launches if one in forward]) == planned


def test_a_call_whose_result_is_moved_is_decided_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, decided = tried(tmp_path, "softmax"), []
    decision = Primitive.decision

    def counted(*given: Any, **named: Any) -> Decision:
        decided.append(1)
        return decision(*given, **named)

    monkeypatch.setattr(Primitive, "decision", counted)
    for _ in range(3):
        x = torch.randn(4, 6, 8)
        torch.testing.assert_close(found.function(x, 1), torch.softmax(x, 1))
    assert len(found.machine.launched) == 3
    assert len(decided) == 1


def test_running_statistics_change_at_every_call(tmp_path: Path) -> None:
    norm = tried(tmp_path, "batch_norm").function
    ours, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    for _ in range(3):
        x = torch.randn(4, 6, 5, 5)
        given = torch.rand(6), torch.rand(6), True
        torch.nn.functional.batch_norm(x, theirs[0], theirs[1], *given)
        norm(x, *ours, *given)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_batch_norm_trains_although_its_running_statistics_change(tmp_path: Path) -> None:
    norm = tried(tmp_path, "batch_norm", "batch_norm", "batch_norm_backward")
    x, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((4, 6, 5, 5), (6,), (6,)))
    out = norm.function(x, torch.zeros(6), torch.ones(6), weight, bias, True)
    exact = torch.nn.functional.batch_norm(x, torch.zeros(6), torch.ones(6), weight, bias, True)
    grad = torch.randn(out.shape)
    got, expected = (torch.autograd.grad(one, (x, weight, bias), grad) for one in (out, exact))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert len(norm.machine.launched) == 2


def test_modes_and_options_are_read_at_every_call(tmp_path: Path) -> None:
    found = tried(tmp_path, "softmax", "softmax", "softmax_backward")
    found.planned(X, -1)
    assert found.planned(X, -1)
    with options(allow=()):
        found.planned(X, -1)
        assert not found.function.explain((X, -1), {}).kernel
    with torch.autocast("cpu", torch.bfloat16):
        assert not found.planned(X, -1)
    batched = torch.vmap(lambda x: found.function(x, -1))(X)
    torch.testing.assert_close(batched, X.softmax(-1))
    learning = X.clone().requires_grad_()
    found.function(learning, -1)[..., 0].sum().backward()
    assert learning.grad is not None
    assert found.planned(X, -1)


def test_a_call_that_pytorch_runs_is_remembered_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tried(tmp_path, "softmax")
    found.planned(X.double(), -1)
    monkeypatch.setattr(Function, "_attempted", None)
    assert not found.planned(X.double(), -1)


@dataclass(frozen=True)
class Capturing(EmulatedMachine):
    """A machine on which a CUDA graph may be captured."""

    now: list[bool] = field(default_factory=lambda: [False])

    def capturing(self, _device: torch.device) -> bool:
        return self.now[0]


def test_a_kernel_that_is_slow_to_launch_runs_in_a_capture_only(tmp_path: Path) -> None:
    taken = iter((120.0, 10.0))
    machine = Capturing(host_us=lambda _: next(taken))
    found = tried(tmp_path, "softmax", machine=machine)
    ran = []
    for machine.now[0] in (False, False, True, False):
        before = len(machine.launched)
        found.planned(X, -1)
        ran.append(len(machine.launched) - before)
    assert ran == [0, 0, 1, 0]


def test_calls_that_never_repeat_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MOST_PLANS", 3)
    found = tried(tmp_path, "leaky_relu")
    for number in range(1, 8):
        found.planned(X, number / 7)
    assert len(found.function._plans) <= 3


LEARNING: dict[str, tuple[Any, ...]] = {
    "silu": (X.transpose(0, 2),),
    "softmax": (X, -1),
    "layer_norm": (X, (8,), torch.rand(8), torch.rand(8)),
    "rms_norm": (X, (8,), torch.rand(8), 1e-6),
    "cross_entropy": (torch.randn(6, 8), torch.arange(6) % 8),
    "max_pool2d": (torch.randn(2, 3, 8, 8), 2, 2),
}


def differentiated(call: Any, given: tuple[Any, ...], times: int = 1) -> list[Any]:
    """Return a call's result and its gradients, and also the gradients of these if `times` is 2."""
    given = tuple(
        x.clone(memory_format=torch.preserve_format).requires_grad_()
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for x in given
    )
    learned = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    out = call(*given)
    found: list[Any] = [out.detach()]
    for _ in range(times):
        weights = torch.linspace(0.5, 1.5, out.numel()).view(out.shape)
        grads = torch.autograd.grad((out * weights).sum(), learned, create_graph=times > 1)
        found += [grad.detach() for grad in grads]
        out = torch.cat([grad.flatten() for grad in grads])
    return found


@pytest.mark.parametrize("name", LEARNING)
def test_the_second_call_that_requires_gradients_runs_a_plan(tmp_path: Path, name: str) -> None:
    backward = [one for op in FORMS[name].ops for one in catalog.load(op).backward]
    found = tried(tmp_path, name, *FORMS[name].ops, *backward)
    expected = differentiated(FORMS[name].pytorch, LEARNING[name])
    forward = {one.id for op in found.function.primitives.values() for one in op.entry.kernels}
    for planned in (0, 1, 2):
        got = differentiated(found.function, LEARNING[name])
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert len([one for one in found.machine.planned_launches if one in forward]) == planned


@pytest.mark.parametrize("name", ["silu", "softmax", "cross_entropy", "max_pool2d"])
def test_a_backward_that_was_seen_before_runs_a_plan(tmp_path: Path, name: str) -> None:
    backward = [one for op in FORMS[name].ops for one in catalog.load(op).backward]
    found = tried(tmp_path, name, *FORMS[name].ops, *backward)
    expected = differentiated(FORMS[name].pytorch, LEARNING[name])
    for planned in (0, 1, 3, 5):  # no plan at the first call, one at the second (the forward's), two at each later call
        torch.testing.assert_close(differentiated(found.function, LEARNING[name]), expected, rtol=1e-4, atol=1e-5)
        assert len(found.machine.planned_launches) == planned


def test_gradients_reach_only_tensors_that_require_them(tmp_path: Path) -> None:
    found = tried(tmp_path, "rms_norm", "rms_norm", "rms_norm_backward").function
    for asks in [(True, False), (False, True), (True, True)] * 2:
        x, weight = (one.requires_grad_(ask) for one, ask in zip((torch.randn(6, 8), torch.rand(8)), asks, strict=True))
        out = found(x, (8,), weight, 1e-6)
        exact = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)
        learned = [one for one in (x, weight) if one.requires_grad]
        grad = torch.randn(6, 8)
        got, expected = (torch.autograd.grad(one, learned, grad) for one in (out, exact))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_gradients_of_a_known_call_are_those_of_pytorch(tmp_path: Path) -> None:
    found = tried(tmp_path, "softmax", "softmax", "softmax_backward")
    expected = differentiated(torch.softmax, (X, -1), times=2)
    for _ in range(2):
        got = differentiated(found.function, (X, -1), times=2)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert found.machine.planned_launches
