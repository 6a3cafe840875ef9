"""Models compiled with a package's pass over their graphs, for tests of what the pass replaces."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.debugging import aot_eager

from evolve.export.template.functions import Functions
from evolve.export.template.redirecting import GraphPass

Model = Callable[..., Any]


def compiled(model: Model, known: Functions, **how: Any) -> tuple[Model, GraphPass]:
    graph_pass = GraphPass(known, "content")

    def backend(module: fx.GraphModule, inputs: list[Tensor]) -> object:
        graph_pass(module.graph)
        module.recompile()
        return aot_eager(module, inputs)

    return torch.compile(model, backend=backend, fullgraph=True, **how), graph_pass


def trained(model: nn.Module, called: Model, x: Tensor) -> list[Tensor]:
    """Return a result and all gradients."""
    x = x.clone().requires_grad_()
    out = called(x)
    of_all = torch.autograd.grad((out * out.detach().cos()).sum(), [x, *model.parameters()])
    return [out.detach(), *of_all, *(one.clone() for one in model.buffers())]
