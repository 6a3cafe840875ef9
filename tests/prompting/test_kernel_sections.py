"""Sections about kernels: faults found without running them, profiles and causes of failures."""

from dataclasses import replace

from each import each
from prompted import GPU, SLOW, alive, profiled, traits
from small_op import BROKEN_TEXT, COMPILE_ERROR, KERNEL, OP, SLOW_TEXT

from archive.kernel import parse
from archive.records import Evaluation, Outcome, Resources, Traits
from evolve.devices import counters as c
from evolve.prompting.diagnosis import AT, HINTS, complaints, diagnosis, form, hint
from evolve.prompting.kernel_sections import kernel_section, population_section, profile_section, weakest_workload
from evolve.prompting.op_sections import EXTREME, VALUES, op_section
from evolve.request import Candidate, Request
from evolve.selection.population import weakest
from reference_ops import catalog
from reference_ops.distributions import DRAWS, EXTREME_DRAWS
from reference_ops.op import NORMAL, TensorSpec

WIDE = traits(load_bytes=16)


def said_of(of: Traits, *resources: Resources) -> str:
    evaluation = replace(alive(KERNEL, GPU, 21.5).evaluation, traits=of, resources=resources)
    return "\n".join(diagnosis(KERNEL, evaluation, OP))


def test_a_kernel_without_faults_has_no_diagnosis() -> None:
    assert said_of(WIDE) == ""


def test_narrow_loads_and_stores_are_reported() -> None:
    assert said_of(traits(load_bytes=4)).startswith("Loads and stores in global memory are at most 4 bytes wide: ")


def test_narrow_stores_without_narrow_loads_are_reported() -> None:
    assert said_of(replace(WIDE, store_bytes=8)).startswith("Stores in global memory are at most 8 bytes wide: ")


def test_narrow_stores_of_a_kernel_that_writes_little_are_not_reported() -> None:
    reduction = replace(OP, outputs=(TensorSpec("out", ("rows",)),))
    evaluation = replace(alive(KERNEL, GPU, 21.5).evaluation, traits=replace(WIDE, store_bytes=4))
    assert any("Stores" in said for said in diagnosis(KERNEL, evaluation, OP))
    assert not any("Stores" in said for said in diagnosis(KERNEL, evaluation, reduction))


def test_a_kernel_that_loads_nothing_has_no_narrow_loads() -> None:
    assert said_of(replace(WIDE, load_bytes=0)) == ""


@each(
    {
        str(case): case
        for case in [
            ({"registers": 128}, "registers"),
            ({"shared_bytes": 100_000}, "shared memory"),
            ({"threads": 16}, "the size of its blocks"),
        ]
    }
)
def test_low_occupancy_is_reported_with_its_limit(changed: dict[str, int], limit: str) -> None:
    sparse = replace(WIDE, occupancy=0.25, **changed)  # type: ignore[arg-type]
    assert f"Occupancy is at most 25% of a multiprocessor's threads, limited by {limit} (" in said_of(sparse)


def test_spills_are_reported_with_their_size() -> None:
    assert "`center_rows` keeps 96 B per thread in local memory" in said_of(WIDE, Resources("center_rows", 255, 0, 96))


def test_a_compiled_kernel_is_described_by_its_own_figures() -> None:
    described = form(replace(WIDE, shared_bytes=64, launches=2, atomics=True))
    assert described == "16-byte loads, 2 launches, 64 B of shared memory per block, 40 registers per thread, atomics"


def test_kernels_that_differ_only_in_their_knobs_share_a_line() -> None:
    settings = [alive(KERNEL.with_knobs({"WARPS": warps}), GPU, 20.0 + warps) for warps in (2, 4, 8)]
    lines = population_section((settings[0], alive(SLOW, GPU, 34.0), *settings[1:]), 12).splitlines()
    others = ", ".join(candidate.kernel.id[:8] for candidate in settings[1:])
    assert [line[:10] for line in lines[1:]] == [f"- {settings[0].kernel.id[:8]}", f"- {SLOW.id[:8]}"]
    assert lines[1].endswith(f"; the same with other knobs: {others}")


def test_workloads_skipped_for_the_same_reason_share_a_line() -> None:
    candidate = alive(KERNEL, GPU, 21.5)
    skipped = ("a=1: too wide", "a=2: too wide", "a=3: `WARPS < 4` does not hold")
    candidate = replace(candidate, evaluation=replace(candidate.evaluation, skipped=skipped))
    told = kernel_section("The parent", candidate, OP, 9999)
    assert "\n- not run (too wide): a=1; a=2\n- not run (`WARPS < 4` does not hold): a=3\n" in told


def test_several_launches_are_reported() -> None:
    assert said_of(replace(WIDE, launches=3)).startswith("3 launches: ")


def test_a_grid_smaller_than_the_gpu_is_reported() -> None:
    kernel = parse(SLOW_TEXT.replace("block = [64]", "block = [128]").replace("rows, 64", "rows, 128"))
    evaluation = replace(alive(kernel, GPU, 34.0).evaluation, traits=WIDE)
    assert "`center` has 64 blocks for 132 multiprocessors at rows=8192" in "\n".join(diagnosis(kernel, evaluation, OP))


@each({str(case): case for case in [(False, True), (True, False)]})
def test_arithmetic_in_half_precision_without_tensor_cores_is_reported(tensor_cores: bool, told: bool) -> None:
    op = replace(OP, matrix_flops=lambda dims: 100_000 * dims["rows"] * dims["cols"])
    evaluation = alive(SLOW, GPU, 34.0, 90.0).evaluation
    evaluation = replace(evaluation, traits=replace(WIDE, tensor_cores=tensor_cores))
    assert any("does not use tensor cores" in sentence for sentence in diagnosis(SLOW, evaluation, op)) is told


def counted(**changed: float) -> Candidate:
    candidate = profiled(alive(KERNEL, GPU, 21.5))
    values = dict(candidate.profiles[0].counters) | {getattr(c, name).name: value for name, value in changed.items()}
    return replace(candidate, profiles=(replace(candidate.profiles[0], counters=tuple(values.items())),))


def test_a_kernel_without_a_profile_has_no_profile_section() -> None:
    assert profile_section("The parent", alive(KERNEL, GPU, 21.5), OP) == ""


def test_excess_traffic_is_reported_as_a_multiple_of_the_minimum() -> None:
    section = profile_section("The parent", counted(DRAM_READ=134.2e6), OP)
    assert "- so it moves 2.49 times the bytes that it must" in section


def test_the_minimum_traffic_is_not_reported_as_excess() -> None:
    assert "times the bytes" not in profile_section("The parent", counted(), OP)


def test_sectors_are_reported_per_access() -> None:
    assert "- 32-byte sectors for each global load of a warp: 4\n" in profile_section("The parent", counted(), OP)


def test_the_profile_of_the_weakest_workload_is_shown() -> None:
    candidate = counted()
    weak = replace(candidate.profiles[0], workload=OP.gpu[1].key)
    both = replace(alive(KERNEL, GPU, 21.5, 90.0), profiles=(*candidate.profiles, weak))
    assert profile_section("The parent", both, OP).startswith(
        f"# The parent as NVIDIA's profiler saw it at {weak.workload}"
    )


def failed_by(outcome: Outcome, log: str = "") -> Evaluation:
    return Evaluation("k", OP.name, GPU, outcome, log)


@each({outcome: outcome for outcome in Outcome if outcome is not Outcome.PASSED})
def test_every_failure_has_a_hint(outcome: Outcome) -> None:
    assert hint(failed_by(outcome)) == HINTS[outcome]


@each({values: values for values in (*DRAWS, *EXTREME_DRAWS) if values != NORMAL})
def test_every_distribution_of_values_is_explained(values: str) -> None:
    log = f"rows=8 cols=64 float32: `out` on {values} values: 3 of 512 elements are off"
    assert f"It was wrong on {values} values: {AT[values]}." in hint(failed_by(Outcome.WRONG, log))
    assert values in VALUES or values in EXTREME


@each({name: name for name in catalog.names()})
def test_the_note_of_every_op_is_shown_in_full(name: str) -> None:
    op = catalog.load(name)
    assert f"\n{op.note}\n" in op_section(op, GPU, "")


def test_the_hint_mentions_elements_that_were_never_written() -> None:
    log = "rows=8 cols=64 float32: `out`: off (64 elements still hold the poison: never written)"
    assert "Some elements were never written" in hint(failed_by(Outcome.WRONG, log))


@each({str(log): log for log in [COMPILE_ERROR, "kernel.cu:15:9: error: what", "line 15: something | else"]})
def test_the_lines_that_a_log_names_are_quoted(log: str) -> None:
    (quoted,) = complaints(parse(BROKEN_TEXT), log)
    assert quoted.startswith("line 15: for (int i = 0; i < cols; ++i) sum +=")


def test_a_line_that_the_kernel_does_not_have_is_not_quoted() -> None:
    assert complaints(parse(BROKEN_TEXT), "kernel.cu(999): error: what") == ()


def test_a_kernel_is_weakest_where_it_is_furthest_from_the_speed_of_light() -> None:
    weak = weakest(alive(SLOW, GPU, 34.0, 90.0).evaluation)
    assert weak is not None
    assert weak.workload == OP.gpu[1].key


def test_a_population_has_the_time_of_its_best_kernel_at_a_workload() -> None:
    request = Request(OP, GPU, 1, 0, population=(alive(KERNEL, GPU, 80.0, 30.0), alive(SLOW, GPU, 34.0, 90.0)))
    key, best = weakest_workload(request)
    assert best is not None
    assert (key, best.median_us) == (OP.gpu[0].key, 34.0)


def test_the_section_of_an_exact_op_says_that_there_is_no_tolerance() -> None:
    exact = replace(OP, tolerance=replace(OP.tolerance, exact=True))
    assert "must equal PyTorch's exactly" in op_section(exact, GPU, "")
