"""A kernel with buffers and counters, for tests of the order among its blocks."""

from archive.binding import Point, bind
from archive.kernel import Bound, parse

PLAN = """/*---
op = "test"
[workspace]
parts = { shape = [4096], dtype = "float32" }
sums = { shape = [4096], dtype = "float32", zero = true }
flags = { shape = [4096], dtype = "int32", zero = true }
count = { shape = [2], dtype = "int32", zero = true }
[[launch]]
entry = "test"
grid = [64]
block = [128]
args = ["x", "y", "parts", "sums", "flags", "count", "n"]
---*/
"""
PARAMETERS = "const float* x, float* y, float* parts, float* sums, int* flags, int* count, int n"
POINT = Point("float32", {"n": 4096}, {}, {"x": "float32", "y": "float32"}, 132, 232448)


def bound(body: str, before: str = "", *, blocks: int = 64, cooperative: bool = False) -> Bound:
    """Return a kernel with this body, and with this text before it."""
    plan = PLAN.replace("grid = [64]", f"grid = [{blocks}]")
    if cooperative:
        plan = plan.replace("block = [128]", "block = [128]\ncooperative = true")
    return bind(parse(f'{plan}{before}\nextern "C" __global__ void test({PARAMETERS}) {{\n{body}\n}}\n'), POINT)
