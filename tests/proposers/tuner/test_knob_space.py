"""Space of settings: legal settings, and those that compile to the same program."""

from records import CPU

from archive.kernel import Kernel, parse
from evolve.op_on_device import point
from evolve.proposers.tuner.space import Space, setting_of, space_of
from reference_ops.op import Op, tensors, workloads

OP = Op(
    name="twice",
    reference=lambda x: x * 2,
    inputs=tensors(x="n"),
    outputs=tensors(out="n"),
    gpu=workloads("float32", {"n": 4096}),
    emulated=workloads("float32", {"n": 100}, {"n": 4096}),
    flops=lambda dims: dims["n"],
)
POINTS = [point(OP, workload, CPU) for workload in OP.emulated]


def kernel(knobs: str, grid: str = "n", require: str = "", code: str = "") -> Kernel:
    return parse(
        f'/*---\nop = "twice"\nrequire = [{require}]\n[knobs]\n{knobs}\n[[launch]]\nentry = "f"\ngrid = ["{grid}"]\n'
        f'block = [32]\nargs = ["x", "out"]\n---*/\n{code}\nextern "C" __global__ void f() {{}}\n'
    )


def space(of: Kernel) -> Space:
    return space_of(of, POINTS, [setting_of(of)])


def test_the_setting_in_the_kernels_text_comes_first() -> None:
    assert space(kernel("A = [4, 1, 2]", "A")).settings == ((4,), (1,), (2,))


def test_a_setting_that_is_legal_on_one_workload_is_part_of_the_space() -> None:
    found = space(kernel("A = [1, 64, 2048]", "ceil_div(n, A)", '"A <= n"'))
    assert found.settings == ((1,), (64,), (2048,))
    assert [programs.of.tolist() for programs in found.programs] == [[0, 1, -1], [0, 1, 2]]


def test_a_setting_that_is_legal_on_no_workload_is_left_out() -> None:
    assert space(kernel("A = [1, 64, 5000]", "ceil_div(n, A)", '"A <= n"')).settings == ((1,), (64,))


def test_only_one_of_the_settings_that_compile_to_the_same_program_is_kept() -> None:
    assert space(kernel("A = [1, 2, 3, 4]", "ceil_div(A, 2)")).settings == ((1,), (3,))


def test_the_setting_that_is_kept_has_the_count_and_the_centroid_of_its_equivalents() -> None:
    found = space(kernel("A = [1, 2, 8]\nB = [1, 4, 16]", "A", '"A < 8 or B < 16"', code="int a = A;"))
    assert found.settings == ((1, 1), (2, 1), (8, 1))
    assert found.multiplicity.tolist() == [3, 3, 2]
    assert found.centroids[:, 1].tolist() == [0.5, 0.5, 0.25]
    assert found.programs[0].coordinates.tolist() == found.centroids.tolist()


def test_a_knob_that_the_code_names_distinguishes_programs() -> None:
    assert len(space(kernel("A = [1, 2, 3, 4]", "ceil_div(A, 2)", code="int a = A;")).settings) == 4


def test_every_knob_distinguishes_programs_of_code_that_pastes_tokens() -> None:
    pasted = "#define JOIN(a, b) a##b\nint a = JOIN(THR, EADS);"
    assert len(space(kernel("THREADS = [1, 2]", "1", code=pasted)).settings) == 2


def test_a_program_has_the_centroid_of_its_settings() -> None:
    found = space_of(one := kernel("A = [1, 4, 16]", "min(A, 4)"), POINTS, [(1,), (4,), (16,)])
    assert found.settings == ((1,), (4,), (16,)), one.plan.knobs
    assert found.programs[0].of.tolist() == [0, 1, 1]
    assert found.programs[0].coordinates.tolist() == [[0.0], [0.75]]


def test_sizes_are_scaled_by_their_logarithm_and_categories_by_their_order() -> None:
    found = space(kernel("A = [1, 4, 16]\nB = [0, 5, 6]", "A", code="int b = B;"))
    coordinates = dict(zip(found.settings, found.coordinates.tolist(), strict=True))
    assert coordinates[(4, 5)] == [0.5, 0.5]
    assert found.categorical == (False, True)


def test_a_huge_space_holds_a_sample_and_all_neighbours_of_the_fastest_setting() -> None:
    knobs = "\n".join(f"K{number} = [1, 2, 4, 8, 16, 32, 64, 128]" for number in range(30))  # 2**90 settings
    code = " ".join(f"K{number}" for number in range(30))
    huge, near = kernel(knobs, code=f"// {code}"), (2,) * 30
    found = space_of(huge, POINTS, [setting_of(huge)], [near])
    assert 1000 < len(found.settings) < 4000
    assert {(*near[:5], 128, *near[6:]), (*near[:29], 1)} <= set(found.settings)
    assert space_of(huge, POINTS, [setting_of(huge)], [near]).settings == found.settings
