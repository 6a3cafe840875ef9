"""The rules that open every prompt, compared with what the grammar and the compiler accept."""

import re
from dataclasses import replace

import pytest
from each import each
from small_op import GPU, KERNEL, KERNEL_TEXT, OP

from archive import binding, plan
from archive.binding import bind, parse_for
from evolve.devices.cuda.translation import EMPTY_HEADERS, PRELUDE
from evolve.devices.prelude import C_TYPES, specialisation
from evolve.evaluation.buffers import LEAST_ALIGNMENT
from evolve.op_on_device import point, signature
from evolve.prompting.kernel_format import rules
from reference_ops.op import Workload

(SECOND_EXAMPLE,) = re.findall(r"```toml\n(.*?)```", rules(), re.DOTALL)
TWO_LAUNCHES = f"""\
/*---
op = "center_rows"

{SECOND_EXAMPLE}---*/
extern "C" __global__ void sum_parts() {{}}
"""


BOUND = bind(KERNEL, point(OP, OP.gpu[0], GPU))


def test_the_example_is_a_kernel() -> None:
    assert parse_for(KERNEL_TEXT, signature(OP)).text == KERNEL_TEXT


@each({workload.dtype: workload for workload in OP.gpu})
def test_the_example_compiles(workload: Workload) -> None:
    pytest.importorskip("cupy")
    from evolve.devices.cuda.compiler import compile_cubin

    assert compile_cubin(bind(KERNEL, point(OP, workload, GPU)), GPU.arch).image


def test_the_example_of_two_launches_is_a_plan() -> None:
    kernel = parse_for(TWO_LAUNCHES, signature(OP))
    bound = bind(kernel, point(OP, OP.gpu[0], GPU))
    assert [(launch.entry, launch.grid) for launch in bound.launches] == [
        ("sum_parts", (1, 8192, 1)),
        ("finish", (8192, 1, 1)),
    ]


def test_every_key_of_a_plan_is_explained() -> None:
    keys = "op note when dtypes specialize require [knobs] [let] [workspace] [[launch]] entry grid block shared args"
    assert [key for key in [*keys.split(), "cooperative"] if f"\n{key}" not in rules()] == []


@each({dtype: dtype for dtype in C_TYPES})
def test_the_rules_give_the_c_type_of_every_dtype(dtype: str) -> None:
    assert re.search(rf"\b{dtype} (is )?{C_TYPES[dtype]}\b", rules())


def test_the_limits_in_the_rules_are_those_of_the_code() -> None:
    threads, (_, _, deep), (_, most, _) = binding.MAX_THREADS, binding.MAX_BLOCK, binding.MAX_GRID
    assert f"{threads} threads per block, its z {deep}; y and z of a grid {most}" in rules()
    assert f"at most {plan.MAX_KNOB_VALUES} values per knob" in rules()


@each({header: header for header in ["math.h", "stdint.h", "float.h"]})
def test_the_host_headers_in_the_rules_can_be_included(header: str) -> None:
    assert f"<{header}>" in rules()
    assert header in EMPTY_HEADERS


@each({name: name for name in ["INFINITY", "NAN", "FLT_MAX", "INT_MAX", "M_PI", "int8_t", "uint64_t", "List"]})
def test_the_names_in_the_rules_are_defined_by_the_prelude(name: str) -> None:
    assert name in rules()
    assert re.search(rf"\b{name}\b", PRELUDE)


def test_the_rules_do_not_mention_reserved_grammar() -> None:
    assert [word for word in ("tensor_maps", "TMA", "overlap", "library =") if word in rules()] == []


def test_the_rules_give_the_types_of_specialised_names_and_the_guaranteed_alignment() -> None:
    assert f"multiple of {LEAST_ALIGNMENT} bytes" in rules()
    for value, type_name in ((7, "int"), (2**31, "long long")):
        assert f"constexpr {type_name} n = " in specialisation(replace(BOUND, constants=(("n", value),)))
    assert "`constexpr int` (long long from 2^31 on)" in rules()
