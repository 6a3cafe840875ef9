"""Cheats and unusual honest kernels: no cheat passes, no honest kernel fails.

`--rounds N` repeats all evaluations with new seeds. All kernels of a device go through the real engine in one pass,
which keeps its workers busy; each test then looks up the verdicts on its own kernel. The quick run takes a few kernels
of each kind, `--exhaustive` all others.
"""

from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from typing import Any

import pytest
from cheat_files import CLASSES, CheatFile, files
from each import each
from warm_fork_servers import plain_assembler, without_cupy

from archive.kernel import parse
from archive.plan import PlanError
from archive.records import Evaluation, Outcome
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine

CHEATS, HONEST, GAINS = files("kernels"), files("honest"), files("gains")
UNREADABLE = [file for file in CHEATS if file.kernel is None]
# Deadlines of kernels that hang are shorter than the device's own 30 s. Those of other kernels are longer: the slowest
# correct kernel, a sort by one bit at a time, takes 6 to 9 s, and several times as long while other tests run.
SECONDS_OF_HANGING = {"compile": 25.0, "run": 20.0, "check": 60.0, "baseline": 60.0, "time": 60.0}
SECONDS_OF_OTHERS = dict.fromkeys(SECONDS_OF_HANGING, 120.0)
SECRET = "root:"  # the start of /etc/passwd, which some of the kernels include
# These are recognised in the output of NVRTC, which the emulated device has only if CuPy is installed.
NEEDS_NVRTC = pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
QUICK = 1  # number of kernels of each kind in the quick run
Verdicts = dict[str, list[Evaluation]]


def cases(corpus: tuple[CheatFile, ...], devices: tuple[str, ...] = ("emulated", "cuda")) -> list[Any]:
    """Return a case for every kernel on each of its devices; the quick run takes a few of each kind."""
    found = []
    for device in devices:
        meant = [file for file in corpus if file.kernel and device in file.devices]
        few = quick(meant)
        for file in meant:
            marks = [pytest.mark.gpu] * (device == "cuda") + [pytest.mark.exhaustive] * (file not in few)
            marks += [NEEDS_NVRTC] * (file.caught == (Outcome.UNSAFE,) and not file.at_confirm)
            found.append(pytest.param(device, file, id=f"{device}-{file.name}", marks=marks))
    return found


def quick(corpus: list[CheatFile]) -> set[CheatFile]:
    """Return the first kernels of each kind, without those that may run into a deadline."""
    kinds: dict[Outcome | None, list[CheatFile]] = defaultdict(list)
    for file in corpus:
        if not file.lasts:
            kinds[file.kind].append(file)
    return set(chain.from_iterable(files[:QUICK] for files in kinds.values()))


@pytest.fixture(scope="module")
def emulated(request: pytest.FixtureRequest) -> Verdicts:
    """Evaluate as on a machine without CuPy where only wrong results are to be found, which saves a third of the time.

    Other outcomes and honest kernels may depend on NVRTC's output.
    """
    rounds, corpus = rounds_of(request.config), chosen(request.session.items, "emulated")
    wrong = {file for file in corpus if file.caught == (Outcome.WRONG,)}
    with without_cupy():
        found = evaluated("emulated", wrong, rounds)
    with plain_assembler():  # kernels run as the host's compiler translates them
        return {**found, **evaluated("emulated", corpus - wrong, rounds)}


@pytest.fixture(scope="module")
def cuda(request: pytest.FixtureRequest) -> Verdicts:
    return evaluated("cuda", chosen(request.session.items, "cuda"), rounds_of(request.config))


def rounds_of(config: pytest.Config) -> int:
    return int(config.getoption("--rounds", default=1))


def evaluated(device: str, corpus: set[CheatFile], rounds: int) -> Verdicts:
    """Return all evaluations of these kernels by kernel id: one in each round, or two if the first passed.

    An honest kernel is confirmed once, because that takes seconds. A cheat that passed is confirmed every time.
    """
    every: Verdicts = defaultdict(list)
    for seconds, group in (
        (SECONDS_OF_HANGING, [file for file in corpus if file.lasts]),
        (SECONDS_OF_OTHERS, [file for file in corpus if not file.lasts]),
    ):
        if group:
            found = _evaluated(device, sorted(group, key=lambda file: file.name), rounds, seconds)
            for evaluation in found:
                every[evaluation.kernel_id].append(evaluation)
    return every


def _evaluated(device: str, files: list[CheatFile], rounds: int, seconds: dict[str, float]) -> Iterator[Evaluation]:
    is_emulated = device == "emulated"
    engine = LocalEngine(
        device,
        2 if is_emulated else 1,
        phase_seconds=seconds if is_emulated else None,
        compilers=0 if is_emulated else 4,
    )
    try:
        for number in range(rounds):
            first = list(engine.evaluate(job(file) for file in files))
            passed = {evaluation.kernel_id for evaluation in first if evaluation.passed}
            due = [file for file in files if file.caught or number == 0]
            again = [file for file in due if file.at_confirm or device == "cuda"]
            second = engine.evaluate(
                job(file, confirm=True) for file in again if file.kernel and file.kernel.id in passed
            )
            yield from (*first, *second)
    finally:
        engine.close()


def chosen(items: list[pytest.Item], device: str) -> set[CheatFile]:
    """Return the kernels of the tests that are about to run."""
    files = set()
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        match params:
            case {"device": str(on), "file": CheatFile() as file} if on == device:
                files.add(file)
    return files


def job(file: CheatFile, *, confirm: bool = False) -> Job:
    assert file.kernel
    return Job(file.kernel, file.kernel.op, confirm=confirm)


@pytest.mark.parametrize(("device", "file"), cases(CHEATS))
def test_a_cheat_is_caught_with_an_outcome_that_describes_it(
    device: str, file: CheatFile, request: pytest.FixtureRequest
) -> None:
    assert file.kernel
    verdicts: Verdicts = request.getfixturevalue(device)
    evaluations = verdicts[file.kernel.id]
    assert evaluations
    for evaluation in evaluations:
        passed_for_now = evaluation.passed and file.at_confirm and evaluation.confirmed is None
        assert passed_for_now or evaluation.outcome in file.caught, f"{evaluation.outcome}: {evaluation.log}"
        assert evaluation.passed or evaluation.log
        assert SECRET not in evaluation.log


@pytest.mark.parametrize(("device", "file"), cases(HONEST))
def test_an_unusual_honest_kernel_passes(device: str, file: CheatFile, request: pytest.FixtureRequest) -> None:
    assert file.kernel
    verdicts: Verdicts = request.getfixturevalue(device)
    evaluations = verdicts[file.kernel.id]
    assert evaluations
    for evaluation in evaluations:
        assert evaluation.passed, f"{evaluation.outcome}: {evaluation.log}"
        assert evaluation.measurements


@pytest.mark.parametrize(("device", "file"), cases(GAINS, ("emulated",)))
def test_a_kernel_that_only_looks_fast_computes_correct_results(
    device: str, file: CheatFile, request: pytest.FixtureRequest
) -> None:
    assert file.kernel
    verdicts: Verdicts = request.getfixturevalue(device)
    assert file.kernel.plan.settings["TRICK"] == 1
    assert file.kernel.with_knobs({"TRICK": 0}).id != file.kernel.id
    for evaluation in verdicts[file.kernel.id]:
        assert evaluation.passed, f"{evaluation.outcome}: {evaluation.log}"


@pytest.mark.parametrize("file", UNREADABLE, ids=lambda file: file.name)
def test_a_plan_that_cannot_be_read_is_refused_with_the_line_of_the_error(file: CheatFile) -> None:
    assert file.caught == (Outcome.MALFORMED,)
    with pytest.raises(PlanError, match=r"^line \d+: "):
        parse(file.text)


@each({f"{file.path.parent.name}/{file.path.name}": file for file in (*CHEATS, *HONEST, *GAINS)})
def test_every_file_has_a_note_and_its_expected_outcomes(file: CheatFile) -> None:
    assert "note = " in file.text.partition("---*/")[0]
    assert bool(file.caught) == (file.path.parent.name == "kernels")
    assert Outcome.PASSED not in file.caught
    assert file.group in CLASSES if file.caught else not file.said


def test_no_two_kernels_are_the_same() -> None:
    ids = [file.kernel.id for file in (*CHEATS, *HONEST, *GAINS) if file.kernel]
    assert len(set(ids)) == len(ids)
