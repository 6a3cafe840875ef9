"""Trivial kernels: one for any op, which declares every dim and integer parameter as a constant."""

from archive.kernel import Kernel, parse
from reference_ops.op import Op


def trivial(op: Op) -> Kernel:
    """Return a kernel that writes one zero to each output."""
    workload = op.listed[0]
    numbers = [name for name, value in workload.parameters if isinstance(value, int)]
    constants = ", ".join(f'"{name}"' for name in (*op.sizes(workload), *numbers))
    outputs = [spec.name for spec in op.outputs]
    args = ", ".join(f'"{name}"' for name in outputs)
    declared = ", ".join(f"{name}_t* out_{place}" for place, name in enumerate(outputs))
    body = " ".join(f"out_{place}[0] = {name}_t(0.0f);" for place, name in enumerate(outputs))
    return parse(
        f'/*---\nop = "{op.name}"\nspecialize = [{constants}]\n\n[[launch]]\nentry = "trivial_entry"\ngrid = [1]\n'
        f"block = [1]\nargs = [{args}]\n---*/\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        f'extern "C" __global__ void trivial_entry({declared}) {{ {body} }}\n'
    )
