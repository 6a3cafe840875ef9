"""Bottlenecks found from profiler counters, which are made up here to trigger one rule at a time."""

from each import each

from evolve.devices import counters as c
from evolve.devices.counters import COUNTERS, Counter
from evolve.prompting.bottleneck import Bottleneck, Counted, Kind, bottleneck, side

# Counters of a kernel that has no particular bottleneck.
CALM = {
    c.COMPUTE: 55.0, c.MEMORY: 58.0, c.DRAM: 50.0, c.L2: 40.0, c.LOAD_SECTORS: 1600.0, c.LOAD_REQUESTS: 100.0,
    c.STORE_SECTORS: 1600.0, c.STORE_REQUESTS: 100.0, c.SHARED_WAVES: 1000.0, c.OCCUPANCY: 70.0, c.ISSUE: 65.0,
    c.LONG_SCOREBOARD: 0.8, c.WAVES: 8.0,
}  # fmt: skip
SYNTHETIC: list[tuple[Kind, dict[Counter, float]]] = [
    (Kind.SPILLS, {c.LOCAL_SECTORS: 400.0}),
    (Kind.UNCOALESCED, {c.LOAD_SECTORS: 3200.0}),
    (Kind.UNCOALESCED, {c.STORE_SECTORS: 2600.0}),
    (Kind.CONFLICTS, {c.LOAD_CONFLICTS: 200.0, c.STORE_CONFLICTS: 100.0}),
    (Kind.BANDWIDTH, {c.DRAM: 88.0, c.MEMORY: 88.0}),
    (Kind.CACHE, {c.L2: 85.0}),
    (Kind.ARITHMETIC, {c.TENSOR: 70.0}),
    (Kind.ARITHMETIC, {c.COMPUTE: 82.0}),
    (Kind.ARITHMETIC, {c.MATH_THROTTLE: 3.0}),
    (Kind.SMALL_GRID, {c.WAVES: 0.4}),
    (Kind.BARRIERS, {c.BARRIER: 5.0}),
    (Kind.OCCUPANCY, {c.LONG_SCOREBOARD: 9.0, c.OCCUPANCY: 20.0}),
    (Kind.LATENCY, {c.LONG_SCOREBOARD: 9.0}),
    (Kind.SHARED_LATENCY, {c.SHORT_SCOREBOARD: 4.0}),
    (Kind.TAIL, {c.WAVES: 1.1}),
]


def synthetic(changed: dict[Counter, float]) -> Counted:
    return {counter.name: value for counter, value in {**CALM, **changed}.items()}


def found(changed: dict[Counter, float], access_bytes: int = 16) -> Bottleneck:
    said = bottleneck(synthetic(changed), access_bytes)
    assert said is not None
    return said


@each({str(case): case for case in SYNTHETIC})
def test_each_kind_of_bottleneck_is_found_from_its_counters(kind: Kind, changed: dict[Counter, float]) -> None:
    assert found(changed).kind is kind


def test_unremarkable_counters_have_no_bottleneck() -> None:
    assert bottleneck(synthetic({})) is None


def test_without_counters_there_is_no_bottleneck() -> None:
    assert bottleneck({}) is None


def test_every_kind_has_a_rule() -> None:
    assert {kind for kind, _ in SYNTHETIC} == set(Kind)


def test_uncoalesced_access_takes_precedence_over_the_bandwidth_it_wastes() -> None:
    assert found({c.LOAD_SECTORS: 3200.0, c.DRAM: 90.0}).kind is Kind.UNCOALESCED


def test_four_sectors_per_access_are_normal_for_narrow_loads() -> None:
    narrow: dict[Counter, float] = {c.LOAD_SECTORS: 400.0, c.STORE_SECTORS: 400.0}
    assert bottleneck(synthetic(narrow), 4) is None


def test_sixteen_sectors_are_too_many_for_narrow_loads() -> None:
    assert found({}, 4).kind is Kind.UNCOALESCED


def test_stalls_are_not_a_bottleneck_where_instructions_are_always_issued() -> None:
    assert bottleneck(synthetic({c.BARRIER: 5.0, c.ISSUE: 90.0})) is None


@each({str(case): case for case in [(2, 8, "registers"), (8, 2, "shared memory")]})
def test_low_occupancy_names_its_limit(registers: int, shared: int, scarce: str) -> None:
    few = {c.LONG_SCOREBOARD: 9.0, c.OCCUPANCY: 20.0, c.BLOCKS_BY_REGISTERS: registers, c.BLOCKS_BY_SHARED: shared}
    assert f"at most 2 blocks per multiprocessor, limited by {scarce}" in found(few).words


@each(
    {
        str(case): case
        for case in [(80.0, 20.0, "memory side"), (20.0, 80.0, "compute side"), (30.0, 20.0, "bound by latency")]
    }
)
def test_the_side_of_the_roofline_is_that_of_the_busier_units(memory: float, compute: float, place: str) -> None:
    assert place in side(synthetic({c.MEMORY: memory, c.COMPUTE: compute}))


def test_without_throughputs_there_is_no_side_of_the_roofline() -> None:
    assert side({c.DURATION.name: 1000.0}) == ""


def test_every_counter_has_a_unique_name_and_a_description() -> None:
    assert len({counter.name for counter in COUNTERS}) == len(COUNTERS)
    assert all(counter.words for counter in COUNTERS)


def test_every_counter_that_is_named_is_collected() -> None:
    assert {value for value in vars(c).values() if isinstance(value, Counter)} == set(COUNTERS)
