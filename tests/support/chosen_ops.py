"""Selections of ops for tests that would take too long over the whole catalog."""

from collections import defaultdict
from functools import cache

from reference_ops import catalog
from reference_ops.op import Op

# Ops whose results are exact or off by one rounding, so that tests with new seeds each time cannot fail by chance.
# Those whose kernels the emulated device takes a minute or more to evaluate are left out.
EXACT = (
    "embedding", "gather", "gelu", "histogram", "permute", "quantise_rows_fp8", "relu", "topk", "transpose",
)  # fmt: skip
THOROUGH = ("add_rms_norm", "causal_conv1d", "gelu", "rms_norm", "softmax", "topk")


@cache
def some() -> tuple[str, ...]:
    """Return the ops with optimised kernels, and one op of each family, together with a backward op if it has one."""
    chosen, by_family = list(THOROUGH), defaultdict[str, list[Op]](list)
    for name in catalog.names():
        if name not in THOROUGH and "_backward" not in name:
            by_family[catalog.family(name)].append(catalog.load(name))
    for family in sorted(by_family):
        first = max(by_family[family], key=lambda op: (bool(op.backward), op.name))
        chosen += [first.name, *first.backward[:1]]
    return tuple(sorted(set(chosen)))
