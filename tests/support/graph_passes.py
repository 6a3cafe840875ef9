"""Models compiled with a package's pass over their graphs, for tests of what the pass replaces."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor, fx, nn
from torch._dynamo.backends.debugging import aot_eager

from evolve.export.families import forms
from evolve.export.template.functions import Functions
from evolve.export.template.redirecting import GraphPass

Model = Callable[..., Any]


def functions(ops: Sequence[str], folder: Path, machine: EmulatedMachine, namespace: str) -> Functions:
    """Return the functions of a package whose kernels compute these ops."""
    known = primitives(ops, folder, machine)
    return Functions([form for form in forms() if {*form.ops} & {*known}], known, namespace)


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
