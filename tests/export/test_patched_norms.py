"""Norms that a model defines itself, which `patch` replaces like layers of torch.nn."""

import copy
import pickle

import pytest
import torch
from emulated_machine import EmulatedMachine
from graph_passes import functions, trained
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from written_norms import WIDTH, DividedNorm, LlamaNorm, MetaNorm

from evolve.export.template.functions import Functions
from evolve.export.template.layers import WrittenOut, patch, unpatch

OPS = ("rms_norm", "rms_norm_backward")
ROWS = (2, 5, WIDTH)
pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, machine: EmulatedMachine) -> Functions:
    return functions(OPS, tmp_path_factory.mktemp("kernels"), machine, "patched_norms")


class Doubled(LlamaNorm):
    """A norm that doubles its result."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Biased(LlamaNorm):
    """A norm of its input plus one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 1)


class Training(LlamaNorm):
    """A norm in training mode, and the identity otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else x


class Branching(LlamaNorm):
    """A norm that branches on its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize("kind", [LlamaNorm, MetaNorm, DividedNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_that_a_model_defines_is_patched(
    known: Functions, machine: EmulatedMachine, kind: type[LlamaNorm], dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=dtype), kind(dtype), kind(dtype))
    other, x = copy.deepcopy(model), torch.randn(ROWS, dtype=dtype)
    report = patch(model, {}, WrittenOut(known))
    assert (report.replaced, report.left) == (("1", "2"), (("0", "the package has no Linear"),))
    assert isinstance(model[1], kind)
    torch.testing.assert_close(trained(model, model, x), trained(other, other, x), rtol=2e-2, atol=2e-2)
    assert len(machine.launched) == 2
    copy.deepcopy(model)(x)
    assert unpatch(model, {}) == ("1", "2")
    assert type(model[1]) is kind


@pytest.mark.parametrize("kind", [Doubled, Biased, Training, Branching])
def test_a_layer_that_is_more_than_a_norm_is_left(known: Functions, kind: type[LlamaNorm]) -> None:
    model = nn.Sequential(kind())
    assert patch(model, {}, WrittenOut(known)).left == (("0", f"the package has no {kind.__name__}"),)
    assert type(model[0]) is kind


def test_patched_norms_with_other_constants_differ(known: Functions) -> None:
    class Norm(LlamaNorm):
        def __init__(self, eps: float) -> None:
            super().__init__()
            self.variance_epsilon = eps

    model = nn.Sequential(Norm(1e-6), Norm(1.0))
    x = torch.randn(ROWS)
    expected = model(x)
    assert patch(model, {}, WrittenOut(known)).replaced == ("0", "1")
    torch.testing.assert_close(model(x), expected)


def test_a_patched_norm_is_saved_with_its_own_class(known: Functions) -> None:
    norm, x = LlamaNorm(), torch.randn(ROWS)
    patch(norm, {}, WrittenOut(known))
    loaded = pickle.loads(pickle.dumps(nn.Sequential(norm)))
    assert type(loaded[0]) is LlamaNorm
    torch.testing.assert_close(loaded(x), norm(x))


def test_a_copy_of_a_patched_norm_is_patched(known: Functions, machine: EmulatedMachine) -> None:
    norm, x = LlamaNorm(), torch.randn(ROWS)
    patch(norm, {}, WrittenOut(known))
    parametrize.register_parametrization(norm, "weight", nn.Softplus())
    copied = copy.deepcopy(norm)
    with torch.no_grad():
        for one in norm.parameters():
            one.zero_()
    torch.testing.assert_close(copied(x), functional.rms_norm(x, (WIDTH,), copied.weight, 1e-6), rtol=1e-4, atol=1e-5)
    assert len(machine.launched) == 1
    assert unpatch(norm, {}) == ("",)
    parametrize.remove_parametrizations(norm, "weight")
    assert type(norm) is LlamaNorm
    assert unpatch(copied, {}) == ("",)


def test_a_patched_norm_is_compiled_in_one_graph(known: Functions, machine: EmulatedMachine) -> None:
    model = LlamaNorm()
    x = torch.randn(ROWS)
    expected = model(x)
    patch(model, {}, WrittenOut(known))
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(hidden=x), expected)
    assert len(machine.launched) == 1
