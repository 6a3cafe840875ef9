"""Models written in plain torch, whose layers or calls are redirected to kernels; these run on the emulated machine."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from written_norms import LlamaNorm

from evolve.export.families import forms
from evolve.export.template import forms as template_forms
from evolve.export.template.forms import LAYERS
from evolve.export.template.functions import Function, Functions
from evolve.export.template.layers import WrittenOut, made, patch, unpatch
from evolve.export.template.options import options
from evolve.export.template.redirecting import GraphPass, enabled

OPS = ("rms_norm", "rms_norm_backward", "silu", "silu_backward", "softmax", "softmax_backward", "cross_entropy")
Known = dict[str, Function]
STEPS = 3


class Model(nn.Module):
    """A small classifier in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.up = nn.Linear(32, 16)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act(self.up(self.norm(x)))
        out: Tensor = hidden * torch.softmax(hidden, -1) + hidden.softmax(dim=1)
        return out


@pytest.fixture(scope="module")
def machine() -> EmulatedMachine:
    return EmulatedMachine()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, machine: EmulatedMachine) -> Known:
    ops = primitives((*OPS, "cross_entropy_backward"), tmp_path_factory.mktemp("kernels"), machine)
    wanted = ("rms_norm", "silu", "softmax", "cross_entropy")
    return dict(Functions([form for form in forms() if form.name in wanted], ops, "redirected_kernels"))


@pytest.fixture(autouse=True)
def forgotten(machine: EmulatedMachine) -> Iterator[None]:
    machine.launched.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def losses(model: nn.Module, called: Callable[[Tensor], Tensor] | None = None) -> list[float]:
    """Train a model for a few steps and return the losses."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(STEPS):
        x = torch.randn(4, 5, 32, generator=generator)
        target = torch.randint(16, (4, 5), generator=generator)
        loss = functional.cross_entropy((model if called is None else called)(x).movedim(-1, 1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_a_patched_model_has_the_same_losses_with_kernels(model: Model, known: Known, machine: EmulatedMachine) -> None:
    expected = losses(copy.deepcopy(model))
    report = patch(model, made(known, __name__))
    assert (report.replaced, report.left) == (("norm", "act"), (("up", "the package has no Linear"),))
    assert losses(model) == pytest.approx(expected, rel=1e-4)
    assert len(machine.launched) == 4 * STEPS


def test_the_report_of_patch_names_layers_so_that_a_number_is_not_mistaken_for_a_count(known: Known) -> None:
    layers = made(known, __name__)
    report = str(patch(nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4)), layers))
    assert report == "1 layer replaced: 1\nlayer 0 left: the package has no Linear"
    assert str(patch(nn.RMSNorm(4), layers)) == "1 layer replaced: (the model itself)"


def test_layers_without_a_kernel_that_was_measured_on_the_models_gpu_are_left(
    model: Model, known: Known, tmp_path: Path
) -> None:
    other = primitives(OPS, tmp_path, EmulatedMachine(name="another GPU"))
    elsewhere = Functions([form for form in forms() if form.name in {"rms_norm", "silu"}], other)
    layers, why = made(elsewhere, __name__), "no kernel for it was measured on another GPU"
    report = patch(model, layers, WrittenOut(elsewhere), elsewhere)
    assert report.replaced == ()
    assert report.left == (("norm", why), ("up", "the package has no Linear"), ("act", why))
    assert patch(LlamaNorm(), {}, WrittenOut(elsewhere), elsewhere).left == (("", why),)
    with options(autotune=True):  # it may choose such kernels, because the machine code is the same
        assert patch(model, layers, None, elsewhere).replaced == ("norm", "act")
    assert unpatch(model, layers) == ("norm", "act")
    assert patch(model, made(known, __name__), None, known).replaced == ("norm", "act")


def test_an_unpatched_model_is_as_before(model: Model, known: Known) -> None:
    layers = made(known, __name__)
    before = [type(module) for module in model.modules()], model.state_dict().keys()
    patch(model, layers)
    assert isinstance(model.norm, nn.RMSNorm)
    assert unpatch(model, layers) == ("norm", "act")
    assert ([type(module) for module in model.modules()], model.state_dict().keys()) == before


@pytest.mark.parametrize("patched_first", [True, False])
def test_a_layer_with_parametrizations_is_patched_and_unpatched(
    known: Known, machine: EmulatedMachine, patched_first: bool
) -> None:
    layers, norm, x = made(known, __name__), nn.RMSNorm(32, eps=1e-6), torch.randn(4, 32)
    if patched_first:
        patch(norm, layers)
    parametrize.register_parametrization(norm, "weight", nn.Softplus())
    copied = copy.deepcopy(norm)
    if not patched_first:
        assert patch(norm, layers).replaced == ("",)
        copied(x)
        assert not machine.launched
    torch.testing.assert_close(norm(x), functional.rms_norm(x, (32,), norm.weight, 1e-6), rtol=1e-4, atol=1e-5)
    assert len(machine.launched) == 1
    assert unpatch(norm, layers) == ("",)
    parametrize.remove_parametrizations(norm, "weight")
    assert type(norm) is nn.RMSNorm


def test_a_patched_layer_takes_its_inputs_by_name(known: Known, machine: EmulatedMachine) -> None:
    norm, x = nn.RMSNorm(32, eps=1e-6), torch.randn(4, 32)
    patch(norm, made(known, __name__))
    torch.testing.assert_close(norm(x=x), functional.rms_norm(x, (32,), norm.weight, 1e-6), rtol=1e-4, atol=1e-5)
    assert len(machine.launched) == 1
    with pytest.raises(TypeError, match="takes the inputs x, but was given hidden"):
        norm(hidden=x)


def test_calls_in_a_block_run_kernels_and_the_report_says_which(
    model: Model, known: Known, machine: EmulatedMachine
) -> None:
    expected = losses(copy.deepcopy(model))
    with enabled(known) as report:
        found = losses(model)
    assert found == pytest.approx(expected, rel=1e-4)
    assert report.replaced == {"rms_norm": STEPS, "silu": STEPS, "softmax": 2 * STEPS, "cross_entropy": STEPS}
    assert not report.left
    assert len(machine.launched) == 2 * sum(report.replaced.values())


def test_the_report_says_why_a_call_was_left(known: Known) -> None:
    with enabled(known) as report:
        torch.softmax(torch.ones(2, 3, dtype=torch.float64), -1)
    assert "softmax: 1 call by PyTorch, first because nothing was measured at float64" in str(report)


def test_the_report_of_a_block_says_in_one_line_that_several_calls_are_not_found(known: Known) -> None:
    with enabled({**known, "swiglu": known["silu"]}) as report:
        x = torch.randn(3, 32)
        x * torch.sigmoid(x)
    several = "calls that one op computes together, such as x * sigmoid(x) and the ops swiglu, and `patch` replaces"
    assert str(report).splitlines()[0] == "no call of a function that the package has"
    assert several in str(report).splitlines()[1]


def test_nothing_is_redirected_after_the_block(known: Known, machine: EmulatedMachine) -> None:
    with enabled(known):
        pass
    torch.softmax(torch.ones(2, 3), -1)
    assert not machine.launched


def test_a_pass_redirects_the_calls_of_a_compiled_model(
    model: Model, known: Known, machine: EmulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.backends.debugging import aot_eager

    monkeypatch.setattr(template_forms, "CALL_US", 0.0)  # kernels save little at this size, and copies precede one

    graph_pass = GraphPass(known, "content")

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graph_pass(module.graph)
        module.recompile()
        return aot_eager(module, inputs)

    expected = losses(copy.deepcopy(model))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert losses(model, compiled) == pytest.approx(expected, rel=1e-4)
    assert graph_pass.replaced == {"rms_norm": 1, "silu": 1, "softmax": 2}
    assert len(machine.launched) == 8 * STEPS


def test_a_copied_pass_is_the_same_pass(known: Known) -> None:
    """Inductor copies its options, and the caller reads the report of the pass that was given."""
    graph_pass = GraphPass(known, "content")
    assert copy.deepcopy({"pre_grad_custom_pass": graph_pass})["pre_grad_custom_pass"] is graph_pass


@pytest.mark.exhaustive
def test_a_pass_is_an_option_of_inductor(known: Known, machine: EmulatedMachine) -> None:
    graph_pass = GraphPass(known, "content")
    compiled = torch.compile(lambda x: torch.softmax(x, -1), options={"pre_grad_custom_pass": graph_pass})
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1))
    assert graph_pass.report.replaced == {"softmax": 1}
    assert len(machine.launched) == 1


def test_the_id_of_a_pass_follows_the_package(known: Known) -> None:
    assert GraphPass(known, "one").uuid() != GraphPass(known, "two").uuid()


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.kind.__name__)
def test_every_layer_computes_the_same_as_pytorchs(layer: object, tmp_path: Path) -> None:
    """Without kernels, each layer passes its arguments on to PyTorch's function."""
    kind, name = layer.kind, layer.function  # type: ignore[attr-defined]
    form = next(form for form in forms() if form.name == name)
    ops = primitives([form.ops[0]], tmp_path, EmulatedMachine(device_type="cuda"))
    ours = made({name: Function(form, ops)}, __name__)[kind.__name__]
    arguments, inputs = EXAMPLES.get(kind, ((), (torch.randn(2, 4, 6),)))
    torch.manual_seed(0)
    expected = kind(*arguments)
    torch.manual_seed(0)
    layer_of_ours = ours(*arguments)
    for training in (True, False):
        outputs = [one.train(training)(*inputs) for one in (layer_of_ours, expected)]
        torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(layer_of_ours.state_dict(), expected.state_dict())


IMAGES, VOLUMES, ROWS = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8, 8), torch.randn(2, 4, 8)
PAIR = (torch.randn(3, 5), torch.rand(3, 5))
EXAMPLES: dict[type, tuple[tuple[object, ...], tuple[Tensor, ...]]] = {
    nn.LayerNorm: ((6,), (torch.randn(2, 4, 6),)),
    nn.RMSNorm: ((6,), (torch.randn(2, 4, 6),)),
    nn.GroupNorm: ((2, 4), (IMAGES,)),
    nn.BatchNorm1d: ((4,), (ROWS,)),
    nn.BatchNorm2d: ((4,), (IMAGES,)),
    nn.BatchNorm3d: ((4,), (VOLUMES,)),
    nn.Softmax: ((-1,), (ROWS,)),
    nn.LogSoftmax: ((-1,), (ROWS,)),
    nn.Linear: ((8, 3), (ROWS,)),
    nn.Conv1d: ((4, 2, 3), (ROWS,)),
    nn.Conv2d: ((4, 2, 3, 2, 1), (IMAGES,)),
    nn.Conv3d: ((4, 2, 3), (VOLUMES,)),
    **{kind: ((2,), (x,)) for kind, x in ((nn.MaxPool1d, ROWS), (nn.MaxPool2d, IMAGES), (nn.MaxPool3d, VOLUMES))},
    **{kind: ((2,), (x,)) for kind, x in ((nn.AvgPool1d, ROWS), (nn.AvgPool2d, IMAGES), (nn.AvgPool3d, VOLUMES))},
    nn.AdaptiveAvgPool1d: ((2,), (ROWS,)),
    nn.AdaptiveAvgPool2d: ((2,), (IMAGES,)),
    nn.AdaptiveAvgPool3d: ((2,), (VOLUMES,)),
    **dict.fromkeys((nn.MSELoss, nn.HuberLoss, nn.CosineSimilarity), ((), PAIR)),
    nn.KLDivLoss: ((None, None, "batchmean"), PAIR),
    nn.CrossEntropyLoss: ((), (torch.randn(3, 5), torch.randint(5, (3,)))),
    nn.Embedding: ((6, 4, 0), (torch.randint(6, (3, 5)),)),
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), ((8, 5, 2), (ROWS,))),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell), ((8, 5), (torch.randn(3, 8),))),
}


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory, machine: EmulatedMachine) -> Functions:
    ops = primitives(("lstm", "gru", "gru_cell"), tmp_path_factory.mktemp("recurrent"), machine)
    return Functions([form for form in forms() if form.name in ops], ops, "recurrent_kernels")


@pytest.fixture(params=[False, True], ids=["outside graphs", "in graphs"])
def in_graphs(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether PyTorch traces recurrent layers."""
    with torch._dynamo.config.patch(allow_rnn=request.param):
        yield request.param


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_patched_recurrent_layer_runs_its_kernel_in_eager_code_and_beside_or_in_graphs(
    layered: Functions, machine: EmulatedMachine, kind: Callable[..., nn.Module], in_graphs: bool
) -> None:
    model, x = nn.Sequential(kind(4, 8), nn.Identity()), torch.randn(5, 3, 4, requires_grad=True)
    expected = copy.deepcopy(model)
    assert patch(model, made(layered, __name__)).replaced == ("0",)
    for called in (model, torch.compile(model, backend="aot_eager", fullgraph=in_graphs)):
        machine.launched.clear()
        out, wanted = called(x)[0], expected(x)[0]
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
        assert len(machine.launched) == 1
        ours, theirs = (torch.autograd.grad(one.sin().sum(), x) for one in (out, wanted))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_patched_layer_accepts_packed_and_single_sequences(layered: Functions) -> None:
    layer = nn.LSTM(4, 8)
    expected = copy.deepcopy(layer)
    patch(layer, made(layered, __name__))
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 4), [5, 4, 2])
    torch.testing.assert_close(layer(packed)[0].data, expected(packed)[0].data)
    alone = torch.randn(5, 4)
    torch.testing.assert_close(layer(alone)[0], expected(alone)[0], rtol=1e-4, atol=1e-5)


def test_a_layer_with_relu_is_left(known: Known) -> None:
    left = patch(nn.RNN(4, 8, nonlinearity="relu"), {"RNN": nn.RNN}).left
    assert left == (("", "its nonlinearity is 'relu'"),)


def test_a_pass_that_got_no_graph_reports_the_reason(layered: Functions, machine: EmulatedMachine) -> None:
    graph_pass = GraphPass(layered, "content")

    def backend(module: torch.fx.GraphModule, _inputs: list[Tensor]) -> object:
        graph_pass(module.graph)
        return module.forward

    model = torch.compile(nn.Sequential(nn.LSTM(4, 8)), backend=backend)
    model(torch.randn(5, 3, 4))
    assert not machine.launched
    assert "a model whose forward calls nn.LSTM" in str(graph_pass)


def test_the_time_of_pytorch_is_taken_without_the_redirection(tmp_path: Path) -> None:
    def host_us(call: Callable[[], object]) -> float:
        call()
        return 5.0

    machine = EmulatedMachine(host_us=host_us)
    ops = primitives(["softmax"], tmp_path, machine)
    known = Functions([form for form in forms() if form.name == "softmax"], ops)
    with enabled(known) as report:
        known["softmax"](torch.randn(4, 8), -1)
    assert machine.launched
    assert not report.replaced
