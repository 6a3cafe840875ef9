import pytest
import torch

from evolve.export.template.calls import NoKernelError, check_outputs, obstacle, workload_of
from reference_ops import catalog
from reference_ops.op import Workload

SOFTMAX, RMS_NORM, TOPK = (catalog.load(name) for name in ("softmax", "rms_norm", "topk"))
X = torch.ones(4, 8)


def test_a_call_has_the_workload_of_its_shapes_and_dtype() -> None:
    inputs = (X.bfloat16(), torch.ones(8, dtype=torch.bfloat16))
    assert workload_of(RMS_NORM, inputs, {"eps": 1e-6}).key == "rows=4 cols=8 eps=1e-06 bfloat16"


def test_an_integer_is_accepted_as_a_float_parameter() -> None:
    assert workload_of(RMS_NORM, (X, torch.ones(8)), {"eps": 1}).parameters == (("eps", 1.0),)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ((torch.ones(2, 4, 8), torch.ones(8)), "`x` has 3 dims, the kernels accept 2"),
        ((X, torch.ones(9)), "`x` of torch.float32, .4, 8., does not fit"),
        ((X, torch.ones(8).half()), "different dtypes"),
        ((X.to(torch.complex64), torch.ones(8).to(torch.complex64)), "no kernel accepts this dtype"),
        ((torch.ones(0, 8), torch.ones(8)), "empty"),
    ],
)
def test_inputs_that_do_not_fit_the_op_have_no_kernel(inputs: tuple[torch.Tensor, ...], reason: str) -> None:
    with pytest.raises(NoKernelError, match=reason):
        workload_of(RMS_NORM, inputs, {"eps": 1e-6})


def test_a_topk_of_more_values_than_a_row_has_gets_no_kernel() -> None:
    workload = Workload("float32", (("rows", 4), ("cols", 8)), (("k", 9),))
    with pytest.raises(NoKernelError, match=r"`values` is of torch.float32, \(4, 8\)"):
        check_outputs(TOPK, workload, (X,))


def test_a_call_that_pytorch_accepts_may_have_a_kernel() -> None:
    check_outputs(TOPK, Workload("float32", (("rows", 4), ("cols", 8)), (("k", 8),)), (X,))


def test_a_recurrent_layer_is_checked_without_computing_every_step() -> None:
    lstm = catalog.load("lstm")
    long = Workload("float32", (("time", 10**7), ("batch", 2), ("input", 3), ("hidden", 4)), ())
    metas = [torch.empty(lstm.shape(spec, long), device="meta") for spec in lstm.inputs]
    check_outputs(lstm, long, metas)
    with pytest.raises(NoKernelError, match="not as declared"):
        check_outputs(lstm, long, [*metas[:-1], metas[-1].double()])


def test_tensors_on_the_cpu_have_no_kernel() -> None:
    assert obstacle((X,), {}, SOFTMAX) == "the inputs are on the CPU"


def test_an_input_that_is_not_a_tensor_has_no_kernel() -> None:
    assert obstacle((None,), {}, SOFTMAX) == "an input is not a plain tensor"  # type: ignore[arg-type]


def test_no_kernel_runs_under_a_dispatch_mode() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert obstacle((X,), {}, SOFTMAX) == "a dispatch mode is active"


def test_no_kernel_runs_under_forward_mode_differentiation() -> None:
    with torch.autograd.forward_ad.dual_level():
        assert obstacle((X,), {}, SOFTMAX) == "forward-mode differentiation is on"


def test_no_kernel_runs_under_a_transform_of_torch_func() -> None:
    reasons = []

    def look(row: torch.Tensor) -> torch.Tensor:
        reasons.append(obstacle((row,), {}, SOFTMAX, "cpu"))
        return row

    torch.vmap(look)(X)
    assert reasons == ["torch.func transforms the call; under vmap, PyTorch batches its own op"]


def test_no_kernel_that_may_use_tf32_runs_where_tf32_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert "TF32 is off" in obstacle((X,), {"stride": 1, "padding": 1}, catalog.load("conv2d"), "cpu")


def test_no_kernel_runs_with_a_parameter_of_another_type() -> None:
    from evolve.export.template.calls import parameter_fault

    assert parameter_fault({"k": 8.0}, TOPK) == "`k` is not a plain int"
