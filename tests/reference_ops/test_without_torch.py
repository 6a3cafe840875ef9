"""Loading of ops without PyTorch: prompts about every op of the catalog are the same as with it."""

import inspect
import subprocess
import sys

import pytest
from command import environment

from reference_ops import catalog, without_torch
from reference_ops.listing import PACKAGE

PRELUDE = """
import sys
from reference_ops import catalog
from reference_ops.without_torch import NotImportedError, without_torch
"""
TEXTS = """
from evolve.cli.ask import DEFAULT_DEVICE, loaded_with_source
from evolve.prompting.op_sections import device_section, op_section
from dataclasses import replace
import hashlib

RATES = replace(DEFAULT_DEVICE, copy_gb_s=4000.0, tflops=(("float32", 50.0), ("bfloat16", 700.0), ("float16", 700.0)))

def texts(name):
    op, source = loaded_with_source(name)
    found = [text for info in (RATES, replace(RATES, kind="emulated"))
             for text in (op_section(op, info, source), device_section(op, info))]
    return hashlib.sha256("".join(found).encode()).hexdigest()

for name in catalog.names():
    print(name, texts(name))
"""
IN_VAIN = """
with without_torch():
    import torch
    from torch.nn import functional
    def annotated(x: "torch.Tensor | None") -> torch.Tensor | tuple[torch.Tensor, ...]: ...
    uses = (
        lambda: torch.relu(1),
        lambda: torch.ops.aten.relu.default(1),
        lambda: functional.relu or None,
        lambda: torch.float16 == 3,
        lambda: torch.float16.is_floating_point and None,
    )
    for use in uses:
        try:
            use()
        except NotImportedError as error:
            print(error)
"""
AFTERWARDS = """
with without_torch():
    described = catalog.load("softmax")
assert "torch" not in sys.modules
op = catalog.load("softmax")
assert op is not described and op.gpu == described.gpu
import torch
assert torch.equal(op.reference(torch.zeros(2, 4)), torch.full((2, 4), 0.25))
with without_torch():
    assert catalog.load("softmax") is op
"""


def output(program: str) -> str:
    command = [sys.executable, "-c", f"{PRELUDE}{program}"]
    done = subprocess.run(
        command, cwd=PACKAGE.parent, env=environment({}), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_prompts_about_every_op_are_written_without_pytorch_and_are_the_same_with_it() -> None:
    without = output(f"{TEXTS}\nassert 'torch' not in sys.modules")
    assert without == output(f"import torch\n{TEXTS}")
    assert len(without.splitlines()) == len(catalog.names())


def test_pytorch_cannot_be_used_while_ops_are_loaded_without_it() -> None:
    assert output(IN_VAIN).splitlines() == [
        f"{use} while PyTorch is not imported"
        for use in (
            "torch.relu is called",
            "torch.ops.aten.relu.default is called",
            "torch.nn.functional.relu is tested",
            "torch.float16 is compared",
            "torch.float16.is_floating_point is tested",
        )
    ]


def test_an_op_that_was_loaded_without_pytorch_is_loaded_with_it_afterwards() -> None:
    output(AFTERWARDS)


def test_nothing_changes_in_a_process_that_has_imported_pytorch() -> None:
    softmax = catalog.load("softmax")
    with without_torch.without_torch():
        assert catalog.load("softmax") is softmax
    assert inspect.getmodule(softmax.reference) is sys.modules["reference_ops.softmax.softmax"]
