"""How much memory an evaluation holds at once, known before it begins."""

from reference_ops.op import Op, Workload

# Of the bytes of inputs and outputs: buffers, copies, and all of it in float64.
INPUTS_HELD, OUTPUTS_HELD = 7, 16


def bytes_held(op: Op, workload: Workload) -> int:
    """At most, where an output is just inexact enough for everything to be looked at."""
    return INPUTS_HELD * op.bytes_of(op.inputs, workload) + OUTPUTS_HELD * op.bytes_of(op.outputs, workload)
