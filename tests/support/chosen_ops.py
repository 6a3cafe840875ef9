"""Selections of ops for tests that would take too long over the whole catalog."""

from reference_ops import catalog

# Ops whose results are exact or off by one rounding, so that tests with new seeds each time cannot fail by chance.
EXACT = (
    "embedding", "gather", "gelu", "histogram", "max_pool2d", "permute", "quantise_rows_fp8", "relu", "sort", "topk",
    "transpose",
)  # fmt: skip
THOROUGH = ("add_rms_norm", "causal_conv1d", "gelu", "rms_norm", "softmax", "topk")


def some() -> list[str]:
    """Return the ops with optimised kernels, and one op of each family, together with a backward op if it has one."""
    chosen = list(THOROUGH)
    for family in sorted({catalog.family(name) for name in catalog.names()}):
        others = [catalog.load(name) for name in catalog.names() if catalog.family(name) == family]
        others = [op for op in others if op.name not in THOROUGH and "_backward" not in op.name]
        if others:
            first = max(others, key=lambda op: (bool(op.backward), op.name))
            chosen += [first.name, *first.backward[:1]]
    return sorted(set(chosen))
