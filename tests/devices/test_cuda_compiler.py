"""The cuda device's compiler needs no GPU: NVRTC compiles to a cubin anywhere."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("cupy")

from archive.binding import Bound, Point, bind
from archive.kernel import parse
from archive.records import Outcome
from evolve.devices.cuda.compiler import Cubin, compile_cubin
from evolve.devices.device import RejectedError

PLAN = """/*---
op = "test"
specialize = ["n"]
[knobs]
THREADS = [128]
[[launch]]
entry = "scaled"
grid = [1]
block = ["THREADS"]
args = ["x", "y", "n", "eps", ["x", "y"]]
---*/
"""
SIGNATURE = "const x_t* x, y_t* y, long long count, float eps, List<const x_t*, 2> both"
BODY = (
    "__shared__ float kept[THREADS]; kept[threadIdx.x] = float(x[n - 1]); __syncthreads();"
    "y[0] = y_t(kept[THREADS - 1 - threadIdx.x] * eps + float(both[1][0]));"
)
POINT = Point("bfloat16", {"n": 64}, {"eps": 1e-6}, {"x": "bfloat16", "y": "float32"}, 132, 232448)


def bound(body: str = BODY, before: str = "", signature: str = SIGNATURE, plan: str = PLAN) -> Bound:
    return bind(parse(f'{plan}{before}\nextern "C" __global__ void scaled({signature}) {{ {body} }}\n'), POINT)


def compiled(kernel: Bound) -> Cubin:
    return compile_cubin(kernel, "sm_90a")


def rejected(kernel: Bound) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        compiled(kernel)
    return caught.value


def test_the_sizes_of_the_parameters_are_read_from_the_cubin() -> None:
    assert compiled(bound()).entries["scaled"].parameter_bytes == (8, 8, 8, 4, 16)


def test_resources_are_what_the_compiler_says() -> None:
    (resources,) = compiled(bound()).resources
    assert (resources.entry, resources.shared_bytes, resources.local_bytes) == ("scaled", 512, 0)
    assert 0 < resources.registers < 64


def test_spills_are_warned_of() -> None:
    fill = "for (int i = 0; i < n; i++) many[(i * count) & 63] += float(x[i]);"
    body = f"float many[64]; {fill} y[0] = y_t(many[count & 63]);"
    assert "spills" in compiled(bound(body)).log


def test_the_image_is_a_whole_elf_file() -> None:
    image = compiled(bound()).image
    section_table = int.from_bytes(image[0x28:0x30], "little")
    sections = int.from_bytes(image[0x3C:0x3E], "little")
    assert len(image) >= section_table + 64 * sections


@pytest.mark.parametrize(
    ("kernel", "outcome", "reason"),
    [
        (bound("nothing();"), Outcome.COMPILE_ERROR, r'kernel\.cu\(14\): error: identifier "nothing" is undefined'),
        (bound("", signature=SIGNATURE.replace(", float eps", "")), Outcome.MALFORMED, "takes 4 arguments.*gives 5"),
        (bound(signature=SIGNATURE.replace("2> both", "3> both")), Outcome.MALFORMED, "list of 2 pointers.*24 bytes"),
        (bound(signature=SIGNATURE.replace("long long", "short")), Outcome.MALFORMED, "4 or 8 bytes.*takes 2"),
        (bound(plan=PLAN.replace('"scaled"', '"other"')), Outcome.MALFORMED, "no extern .*`other`.*scaled"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(kernel: Bound, outcome: Outcome, reason: str) -> None:
    error = rejected(kernel)
    assert error.outcome is outcome
    assert re.search(reason, error.log, flags=re.DOTALL), error.log


@pytest.mark.parametrize(
    "directive",
    [
        '#include "/etc/passwd"', "#include </etc/passwd>", '#include "../../etc/passwd"', '%:include "/etc/passwd"',
        '#\\\ninclude "/etc/passwd"', '#define F "/etc/passwd"\n#include F', '#/**/include "/etc/passwd"',
        '#include_next "/etc/passwd"', '#include "pyproject.toml"',
    ],
)  # fmt: skip
def test_a_file_of_the_user_is_never_read(directive: str) -> None:
    error = rejected(bound(before=directive))
    assert error.outcome is Outcome.COMPILE_ERROR
    assert "root" not in error.log


def test_headers_of_the_toolkit_can_be_included() -> None:
    before = '#include <cuda_fp16.h>\n#include "cuda_bf16.h"\n#include <cuda/std/type_traits>\n#include <stdint.h>'
    assert compiled(bound(before=before)).entries


def test_more_threads_than_launch_bounds_allow_are_illegal() -> None:
    kernel = bound()
    text = kernel.kernel.text.replace("__global__ void", "__global__ void __launch_bounds__(64)")
    assert rejected(replace(kernel, kernel=parse(text))).outcome is Outcome.ILLEGAL
