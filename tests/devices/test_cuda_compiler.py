"""The cuda device's compiler, which runs without a GPU."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cupy")
from cupy.cuda import nvrtc

from archive.binding import Point, bind
from archive.kernel import Bound, parse
from archive.records import Outcome
from evolve.devices.cuda import compiler
from evolve.devices.cuda.compiler import ANCHOR, PRECOMPILES_SINCE, Cubin, check_compiles, compile_cubin
from evolve.devices.cuda.cubin import most_shared
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


def mapped(parameter: str) -> Bound:
    """Return a kernel with a tensor map of `x`, passed as this parameter."""
    map_of_x = '[tensor_maps]\nm = { tensor = "x", shape = ["n"], box = [64] }\n[[launch]]'
    plan = PLAN.replace("[[launch]]", map_of_x).replace('["x", "y", "n", "eps", ["x", "y"]]', '["m"]')
    return bound("", signature=parameter, plan=plan)


def compiled(kernel: Bound) -> Cubin:
    return compile_cubin(kernel, "sm_90a")


def rejected(kernel: Bound) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        compiled(kernel)
    return caught.value


def test_the_sizes_of_the_parameters_are_read_from_the_cubin() -> None:
    assert compiled(bound()).entries["scaled"].parameter_bytes == (8, 8, 8, 4, 16)


def test_a_tensor_map_is_a_parameter_of_128_bytes() -> None:
    assert compiled(mapped("const __grid_constant__ CUtensorMap m")).entries["scaled"].parameter_bytes == (128,)


def test_resources_are_those_that_the_compiler_reports() -> None:
    (resources,) = compiled(bound()).resources
    assert (resources.entry, resources.shared_bytes, resources.local_bytes) == ("scaled", 512, 0)
    assert 0 < resources.registers < 64


def test_spills_cause_a_warning() -> None:
    fill = "for (int i = 0; i < n; i++) many[(i * count) & 63] += float(x[i]);"
    body = f"float many[64]; {fill} y[0] = y_t(many[count & 63]);"
    assert "spills" in compiled(bound(body)).log


PRODUCTS = """
    __shared__ alignas(1024) char tile[16384];
    const unsigned long long of = 1ull << 62 | 64ull << 32 | 1ull << 16 | ((size_t)__cvta_generic_to_shared(tile) >> 4);
    float d[4] = {};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < 4; ++k) {
        asm volatile("{\\n.reg .pred add;\\nsetp.ne.b32 add, %6, 0;\\n"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, add, 1, 1, 0, 0;\\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(of + 2 * k), "l"(of + 2 * k), "r"(k));
        TOUCHED
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];"""


@pytest.mark.parametrize("touched", [False, True])
def test_products_of_a_warpgroup_that_wait_for_each_other_cause_a_warning(touched: bool) -> None:
    log = compiled(bound(PRODUCTS.replace("TOUCHED", "d[0] *= eps;" if touched else ""))).log
    assert ("in `scaled` the compiler waits for each wgmma before the next" in log) == touched


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
        (mapped("const CUtensorMap* m"), Outcome.MALFORMED, "`m` .*__grid_constant__ CUtensorMap m`.* takes 8 bytes"),
        (mapped("const CUtensorMap m"), Outcome.MALFORMED, "the function takes a copy of it: take it as `const __grid"),
        (bound(plan=PLAN.replace('"scaled"', '"other"')), Outcome.MALFORMED, "no extern .*`other`.*scaled"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_the_cubin_is_rejected_with_the_reason(
    kernel: Bound, outcome: Outcome, reason: str
) -> None:
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
def test_files_of_the_user_are_never_read(directive: str) -> None:
    error = rejected(bound(before=directive))
    assert error.outcome is Outcome.COMPILE_ERROR
    assert "root" not in error.log


@pytest.mark.exhaustive
def test_headers_of_the_toolkit_can_be_included() -> None:
    before = '#include <cuda_fp16.h>\n#include "cuda_bf16.h"\n#include <cuda/std/type_traits>\n#include <stdint.h>'
    assert compiled(bound(before=before)).entries


def test_more_threads_than_launch_bounds_allow_are_illegal() -> None:
    kernel = bound()
    text = kernel.kernel.text.replace("__global__ void", "__global__ void __launch_bounds__(64)")
    assert rejected(replace(kernel, kernel=parse(text))).outcome is Outcome.ILLEGAL


def test_static_and_dynamic_shared_memory_must_fit_together() -> None:
    def with_shared(size: int) -> Bound:
        return bound(plan=PLAN.replace("args =", f"shared = {size}\nargs ="))

    static = 4 * 128
    assert compiled(with_shared(POINT.shared_bytes - static)).entries
    error = rejected(with_shared(POINT.shared_bytes - static + 1))
    assert error.outcome is Outcome.ILLEGAL
    assert f"{static} bytes of static and {POINT.shared_bytes - static + 1} of dynamic" in error.log


def test_a_kernel_with_which_the_assembler_finds_no_fault_is_checked_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def assembled(*_: object) -> Cubin:
        raise AssertionError("machine code was made")

    monkeypatch.setattr(compiler, "compile_cubin", assembled)
    check_compiles(bound(), "sm_90a")
    with pytest.raises(AssertionError):
        check_compiles(bound(f'{BODY} asm volatile("nanosleep.u32 9;");'), "sm_90a")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("y[0] = missing;", "block ="),
        ("y[0] = y_t(clock());", "block ="),
        ("__shared__ float wide[60000]; wide[count] = x[0]; __syncthreads(); y[0] = wide[int(x[1])];", "block ="),
        ("float own[n * 4096]; own[count] = 1; y[0] = own[threadIdx.x];", "block ="),
        (BODY, "shared = 232448\nblock ="),
        ('asm volatile("no.such.instruction;");', "block ="),
        ("__nanosleep(1); y[0] = x[threadIdx.x];", "block ="),
    ],
    ids=["C++", "clock", "static shared", "local", "shared", "asm", "none"],
)
def test_without_machine_code_the_same_faults_are_found(body: str, line: str) -> None:
    kernel = bound(body, plan=PLAN.replace("block =", line))

    def verdict(compile_: Callable[[Bound, str], object]) -> tuple[Outcome, str]:
        try:
            compile_(kernel, "sm_90a")
        except RejectedError as error:
            return error.outcome, re.sub(r"Compile time = \S+", "", error.log)
        return Outcome.PASSED, ""

    assert verdict(check_compiles) == verdict(compile_cubin)


def test_without_machine_code_launch_bounds_count_too() -> None:
    text = bound().kernel.text.replace("__global__ void", "__global__ void __launch_bounds__(64)")
    with pytest.raises(RejectedError, match="__launch_bounds__ allows 64"):
        check_compiles(replace(bound(), kernel=parse(text)), "sm_90a")


@pytest.mark.parametrize(("arch", "kilobytes"), [("sm_75", 64), ("sm_80", 163), ("sm_86", 99), ("sm_90a", 227)])
def test_a_block_has_the_shared_memory_of_a_multiprocessor_except_the_part_that_the_system_reserves(
    arch: str, kilobytes: int
) -> None:
    assert most_shared(arch) == kilobytes * 1024


@pytest.mark.parametrize(
    ("before", "body", "name"),
    [
        ("__device__ int counter;", "y[0] = y_t(counter++);", "counter"),
        ("", "static int calls; y[0] = y_t(calls++);", "calls"),
        ("namespace { __device__ float held[3]; }", "y[0] = held[count]; held[0] = eps;", "held"),
        ("namespace mine { __device__ int count; }", "y[0] = y_t(mine::count++);", "mine::count"),
        ("__managed__ int host;", "y[0] = y_t(host++);", "host"),
    ],
)
def test_a_variable_that_outlives_the_call_is_refused(before: str, body: str, name: str) -> None:
    error = rejected(bound(body, before))
    assert error.outcome is Outcome.KEEPS_STATE
    assert f"`{name}` keeps its value" in error.log


def test_allocating_on_the_heap_is_refused() -> None:
    error = rejected(bound("int* p = new int[count]; p[count - 1] = 1; y[0] = y_t(p[0]); delete[] p;"))
    assert error.outcome is Outcome.KEEPS_STATE
    assert "it calls `malloc`" in error.log


@pytest.mark.parametrize("declared", ["kept", "kept = 1", "$str = 1"])
def test_a_variable_in_inline_ptx_is_refused(declared: str) -> None:
    name = declared.split(maxsplit=1)[0]
    code = f".global .u32 {declared}; atom.global.inc.u32 %0, [{name}], 9;"
    error = rejected(bound(f'unsigned was; asm volatile("{code}" : "=r"(was)); y[0] = y_t(was);'))
    assert error.outcome is Outcome.KEEPS_STATE
    assert name in error.log


@pytest.mark.parametrize(
    ("before", "names"),
    [
        ("__device__ const float table[4] = {1, 2, 3, 4};", {"table"}),
        ("__device__ float table[4] = {1, 2, 3, 4};", {"table"}),
        ("__constant__ float table[4] = {1, 2, 3, 4};", {"table"}),
        ("constexpr float table[4] = {0, 0, 0, 0};", {"table"}),
        ("namespace cuda { __device__ float table[4]; } using cuda::table;", {"_ZN4cuda5tableE"}),
    ],
)
def test_variables_that_may_be_constant_are_compared_after_calls(before: str, names: set[str]) -> None:
    cubin = compiled(bound("y[0] = y_t(table[count & 3]);", before))
    assert {variable.name for variable in cubin.variables} == {*names, "n", ANCHOR}


@pytest.mark.parametrize(
    ("before", "read", "name"),
    [
        ("", "clock64()", "%clock64"),
        ("", "clock()", "%clock"),
        (
            '__device__ int now() { int at; asm("mov.u32 %0, %%global" "timer_lo;" : "=r"(at)); return at; }',
            "now()",
            "%g",
        ),
        (
            '__device__ long long of() { long long n; asm("mov.u64 %0, %%gridid;" : "=l"(n)); return n; }',
            "of()",
            "%gridid",
        ),
        ('__device__ int pm() { int n; asm("mov.u32 %0, %%pm" "3;" : "=r"(n)); return n; }', "pm()", "%pm3"),
        ('__device__ int sm() { int n; asm("mov.u32 %0, %%smid;" : "=r"(n)); return n; }', "sm()", "blockIdx"),
        ('__device__ int warp() { int n; asm("mov.u32 %0, %%warpid;" : "=r"(n)); return n; }', "warp()", "threadIdx"),
        (
            '__device__ long long of() { long long n; asm("mov.u64 %0, %%current_graph_exec;" : "=l"(n)); return n; }',
            "of()",
            "outside",
        ),
        ('__device__ int hi() { int n; asm("mov.u32 %0, %%clock_hi;" : "=r"(n)); return n; }', "hi()", "%clock_hi"),
        ('__device__ int of() { int n; asm("mov.u32 %0, %%envreg3;" : "=r"(n)); return n; }', "of()", "%envreg3"),
        (
            "#include <cooperative_groups.h>\n"
            '__device__ int of() { int n; asm("mov.u32 %0, %%envreg1;" : "=r"(n)); return n; }',
            "of()",
            "only to the driver",
        ),
        (
            '__device__ int of() { int n; asm("mov.u32 %0, %%reserved_smem_offset_begin;" : "=r"(n)); return n; }',
            "of()",
            "%reserved_smem_offset_begin",
        ),
    ],
)
def test_reading_a_register_that_differs_between_calls_is_refused(before: str, read: str, name: str) -> None:
    error = rejected(bound(f"y[0] = y_t({read});", before))
    assert error.outcome is Outcome.KEEPS_STATE
    assert name in error.log


def test_reading_the_time_of_compilation_is_refused() -> None:
    error = rejected(bound("y[0] = y_t(__TIME__[0]);"))
    assert error.outcome is Outcome.KEEPS_STATE
    assert "__TIME__" in error.log


@pytest.mark.parametrize("register", ["laneid", "nsmid", "lanemask_lt", "dynamic_smem_size", "cluster_ctarank"])
def test_registers_that_are_the_same_in_every_call_may_be_read(register: str) -> None:
    read = f'__device__ int of() {{ int n; asm("mov.u32 %0, %%{register};" : "=r"(n)); return n; }}'
    compiled(bound("y[0] = y_t(of());", read))


def test_infinity_and_nan_are_constant_expressions() -> None:
    compiled(bound("constexpr float least = -INFINITY, none = NAN; y[0] = y_t(least + none);"))


def test_waiting_without_a_clock_is_accepted() -> None:
    compiled(bound("__nanosleep(100); y[0] = y_t(0);"))


def test_constants_of_headers_are_compared_after_calls_and_not_refused() -> None:
    cubin = compiled(bound("cooperative_groups::this_grid().sync();", "#include <cooperative_groups.h>"))
    assert any("cuda3std" in variable.name for variable in cubin.variables)


def test_variables_named_by_the_compiler_share_a_section_with_one_that_the_driver_finds() -> None:
    """The driver cannot look up variables such as a function's name or the text of a printf."""
    body = 'char* name = (char*)__func__; asm volatile("" : "+l"(name)); name[0] += 1; y[0] = y_t(name[0]);'
    found = {variable.name: variable.section for variable in compiled(bound(body)).variables}
    (unnamed,) = found.keys() - {"n", ANCHOR}
    assert found[unnamed] == found[ANCHOR]


@pytest.mark.parametrize(("integer", "fits"), [("int", False), ("unsigned", True), ("long long", True)])
def test_an_integer_beyond_two_billion_does_not_become_negative(integer: str, fits: bool) -> None:
    large = bind(
        parse(bound(signature=SIGNATURE.replace("long long", integer)).kernel.text),
        replace(POINT, dims={"n": 3 * 10**9}),
    )
    if fits:
        assert compiled(large)
    else:
        assert "3000000000 does not fit in 4 bytes" in rejected(large).log


def test_specialised_values_are_compared_after_calls_too() -> None:
    assert {variable.name for variable in compiled(bound()).variables} == {"n", ANCHOR}


def test_a_specialised_zero_is_not_state() -> None:
    zero = replace(bound(BODY.replace("n - 1", "n")), constants=(("n", 0),))
    assert {variable.name for variable in compiled(zero).variables} == {"n", ANCHOR}


def test_precompiled_headers_change_no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def image(note: str, arch: str = "sm_90a") -> bytes:
        return compile_cubin(bound(f"{BODY} // {note}\n"), arch).image

    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_precompiled_headers", lambda _arch: [])
        plain = image("without")
    assert plain == image("creates them") == image("uses them")
    assert image("for another architecture", "sm_80") != plain


@pytest.mark.skipif(nvrtc.getVersion() < PRECOMPILES_SINCE, reason="this NVRTC cannot precompile headers")
def test_headers_are_precompiled_again_if_their_folder_was_deleted() -> None:
    for number in range(3):
        assert not compile_cubin(bound(f"{BODY} // {number} without folder\n"), "sm_90a").log
        folder = Path(compiler._own_folder(os.getpid()).name)
        assert folder.is_dir()
        shutil.rmtree(folder)
