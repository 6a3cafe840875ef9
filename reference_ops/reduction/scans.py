"""Running sums and products along rows, and their backward."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_ops.arrangements import nan_in, sprinkled, then
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide

DOWN = 2.0**-9  # a power of two keeps integers exact
SPREAD = 1.0  # standard deviation of the logarithm of a product over a whole row


def cumsum(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(wide(x), -1).to(x.dtype)


def cumsum_backward(grad_out: torch.Tensor) -> torch.Tensor:
    return _from_the_end(wide(grad_out)).to(grad_out.dtype)


def cumprod(x: torch.Tensor) -> torch.Tensor:
    return torch.cumprod(wide(x), -1).to(x.dtype)


def cumprod_backward(grad_out: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    gradient, factors, products = wide(grad_out), wide(x), wide(out)
    before_zeros = _from_the_end(gradient * products) / factors
    count = (factors == 0).cumsum(-1)
    first = (factors == 0) & (count == 1)
    # from the element after the first zero up to the next zero
    others = factors.masked_fill((count != 1) | first, 1).cumprod(-1)
    earlier = torch.cat((torch.ones_like(products[..., :1]), products[..., :-1]), -1)
    at_first = (gradient * others).masked_fill(count != 1, 0).sum(-1, keepdim=True) * earlier
    return torch.where(count == 0, before_zeros, torch.where(first, at_first, 0)).to(x.dtype)


def cumsum_of_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x, -1)


def cumsum_backward_of_torch(grad_out: torch.Tensor) -> torch.Tensor:
    return _from_the_end(grad_out)


def cumprod_of_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.cumprod(x, -1)


def cumprod_backward_of_torch(grad_out: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.cumprod_backward(grad_out, x, -1, out)
    return found


def _from_the_end(values: torch.Tensor) -> torch.Tensor:
    return values.flip(-1).cumsum(-1).flip(-1)


def draw_terms(inputs: Tensors, _: torch.Generator) -> None:
    """Scale terms down in float16, where sums of thousands of large numbers may overflow."""
    for values in inputs.values():
        if values.dtype == torch.float16:
            values.mul_(DOWN)


def draw_factors(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw factors of both signs and near 1, so that long products stay in range."""
    x = inputs["x"]
    signs = torch.empty_like(x).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    x.normal_(std=SPREAD / x.shape[-1] ** 0.5, generator=generator).exp_().mul_(signs)
    if "out" in inputs:
        inputs["out"].copy_(cumprod(x))


def save_product(inputs: Tensors) -> None:
    inputs["out"].copy_(cumprod(inputs["x"]))


def plain_factors(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Draw normal factors, whose products soon vanish."""
    inputs["x"].normal_(generator=generator)


def one_zero(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Put one zero into each row, from the first place on."""
    x = inputs["x"]
    places = torch.randint(x.shape[-1], (len(x), 1), generator=generator, device=x.device)
    places[0] = 0
    x.scatter_(-1, places, 0.0)


SPECIAL = {
    **nan_in("x"),
    **sprinkled("x", zeros=0.0),
    "one_zero_in_each_row": one_zero,
}
OF_FACTORS = {**SPECIAL, **sprinkled("x", 0.01, infinities=math.inf, thousands=1000.0), "plain_factors": plain_factors}


def at(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


def scan(
    name: str,
    note: str,
    references: tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]],
    arrays: tuple[str, str],
    factors: bool,
) -> Op:
    """Return the op of a scan.

    `references` are the exact function and the function that a user calls; `arrays` are the names of the inputs and the
    output.
    """
    inputs, output = arrays
    backward = name.endswith("_backward")
    return Op(
        name=name,
        note=note,
        reference=references[0],
        baseline=references[1],
        baseline_free=(output,),  # on a GPU PyTorch rounds partial results to the dtype
        inputs=tensors(**dict.fromkeys(inputs.split(), "rows cols")),
        outputs=tensors(**{output: "rows cols"}),
        gpu=(
            *workloads("bfloat16 float32 float16", at(8192, 8192)),
            *workloads("bfloat16", at(65536, 1024)),
            *workloads("float32", at(256, 128256), at(4099, 5003)),  # probabilities of a vocabulary, for top-p
        ),
        emulated=workloads("float32 bfloat16 float16", at(24, 256), at(4, 2304)),
        awkward=rotated(
            "float32 bfloat16 float16",
            at(1, 1), at(31, 33), at(33, 31), at(7, 257), at(5, 1000), at(3, 2047), at(2, 4104),
        ),
        values=() if factors else (*COMMON, "integers"),  # factors have only one distribution
        draw=draw_factors if factors else draw_terms,
        arranged={} if not factors else then(SPECIAL, save_product) if backward else OF_FACTORS,
        flops=lambda dims: (3 if factors and backward else 1) * dims["rows"] * dims["cols"],
        # The default factor suffices for sums in float32 in any order; for products see the note.
        tolerance=Tolerance(sums="cols", running=True),
        backward=() if backward else (f"{name}_backward",),
    )  # fmt: skip


ops = (
    scan("cumsum", "The running sum along each row.", (cumsum, cumsum_of_torch), ("x", "out"), factors=False),
    scan(
        "cumsum_backward", "grad_x = the running sum of grad_out from the end of each row back to its start.",
        (cumsum_backward, cumsum_backward_of_torch), ("grad_out", "grad_x"), factors=False,
    ),
    scan(
        "cumprod", "The running product along each row. In any order, each multiplication adds a rounding. PyTorch "
                   "multiplies float32 values in float64 on a CPU, and in float32 on a GPU.",
        (cumprod, cumprod_of_torch), ("x", "out"), factors=True,
    ),
    scan(
        "cumprod_backward", "grad_x = (the sum of grad_out * out from here to the end of the row) / x. In a row with "
                            "zeros, the first zero gets the sum of grad_out times the products without it, up to the "
                            "next zero, and all elements after it get 0.",
        (cumprod_backward, cumprod_backward_of_torch), ("grad_out x out", "grad_x"), factors=True,
    ),
)  # fmt: skip
