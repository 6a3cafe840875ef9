"""No cheat passes and no honest kernel fails, whatever the seeds: `--rounds N` repeats everything.

All kernels of a device go through the real engine in one pass, so that its workers are always busy; each test then
looks up its own kernel's verdicts.
"""

from collections import defaultdict
from typing import Any

import pytest
from cheat_files import CheatFile, files

from archive.kernel import parse
from archive.plan import PlanError
from archive.records import Evaluation, Outcome
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine

CHEATS, HONEST, GAINS = files("kernels"), files("honest"), files("gains")
UNREADABLE = [file for file in CHEATS if file.kernel is None]
# What hangs costs its deadline; an emulated run takes far less unless the machine is busy with something else.
EMULATED_SECONDS = {"compile": 16.0, "run": 12.0, "check": 60.0, "baseline": 60.0, "time": 60.0}
SECRET = "root:"  # how /etc/passwd begins, which some of the kernels ask the compiler to read
Verdicts = dict[str, list[Evaluation]]


def cases(corpus: tuple[CheatFile, ...]) -> list[Any]:
    """Every kernel on every device that it is for."""
    return [
        pytest.param(device, file, id=f"{device}-{file.name}", marks=[pytest.mark.gpu] if device == "cuda" else [])
        for file in corpus
        for device in file.devices
        if file.kernel
    ]


@pytest.fixture(scope="module")
def emulated(request: pytest.FixtureRequest) -> Verdicts:
    return evaluated("emulated", chosen(request.session.items, "emulated"), rounds_of(request.config))


@pytest.fixture(scope="module")
def cuda(request: pytest.FixtureRequest) -> Verdicts:
    return evaluated("cuda", chosen(request.session.items, "cuda"), rounds_of(request.config))


def rounds_of(config: pytest.Config) -> int:
    return int(config.getoption("--rounds", default=1))


def evaluated(device: str, corpus: set[CheatFile], rounds: int) -> Verdicts:
    """All evaluations of these kernels, by the kernel's id: one a round, two where it passed.

    Honest kernels are confirmed once: that takes seconds each, and a cheat that passed has to be, every time.
    """
    ordered = sorted(corpus, key=lambda file: (not file.lasts, file.name))  # no worker waits for another in the end
    deadlines = EMULATED_SECONDS if device == "emulated" else None
    workers = 2 if device == "emulated" else 1
    engine = LocalEngine(device, workers, phase_seconds=deadlines, compilers=0 if device == "emulated" else 4)
    every: Verdicts = defaultdict(list)
    try:
        for number in range(rounds):
            first = list(engine.evaluate(job(file) for file in ordered))
            passed = {evaluation.kernel_id for evaluation in first if evaluation.passed}
            due = [file for file in ordered if file.caught or number == 0]
            again = [file for file in due if file.at_confirm or device == "cuda"]
            second = engine.evaluate(
                job(file, confirm=True) for file in again if file.kernel and file.kernel.id in passed
            )
            for evaluation in (*first, *second):
                every[evaluation.kernel_id].append(evaluation)
    finally:
        engine.close()
    return every


def chosen(items: list[pytest.Item], device: str) -> set[CheatFile]:
    """The kernels of the tests that are about to run: all of them, unless the user asked for a few."""
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
def test_every_cheat_is_caught_and_called_what_it_is(
    device: str, file: CheatFile, request: pytest.FixtureRequest
) -> None:
    assert file.kernel
    verdicts: Verdicts = request.getfixturevalue(device)
    evaluations = verdicts[file.kernel.id]
    assert evaluations
    for evaluation in evaluations:
        by_luck = evaluation.passed and file.at_confirm and evaluation.confirmed is None
        assert by_luck or evaluation.outcome in file.caught, f"{evaluation.outcome}: {evaluation.log}"
        assert evaluation.passed or evaluation.log
        assert SECRET not in evaluation.log


@pytest.mark.parametrize(("device", "file"), cases(HONEST))
def test_every_honest_kernel_passes_however_unusual(
    device: str, file: CheatFile, request: pytest.FixtureRequest
) -> None:
    assert file.kernel
    verdicts: Verdicts = request.getfixturevalue(device)
    evaluations = verdicts[file.kernel.id]
    assert evaluations
    for evaluation in evaluations:
        assert evaluation.passed, f"{evaluation.outcome}: {evaluation.log}"
        assert evaluation.measurements


@pytest.mark.parametrize(("device", "file"), [case for case in cases(GAINS) if case.values[0] == "emulated"])
def test_what_only_wants_to_look_fast_is_right(device: str, file: CheatFile, request: pytest.FixtureRequest) -> None:
    assert file.kernel
    verdicts: Verdicts = request.getfixturevalue(device)
    assert file.kernel.plan.settings["TRICK"] == 1
    assert file.kernel.with_knobs({"TRICK": 0}).id != file.kernel.id
    for evaluation in verdicts[file.kernel.id]:
        assert evaluation.passed, f"{evaluation.outcome}: {evaluation.log}"


@pytest.mark.parametrize("file", UNREADABLE, ids=lambda file: file.name)
def test_a_plan_that_cannot_be_read_is_refused_with_its_line(file: CheatFile) -> None:
    assert file.caught == {Outcome.MALFORMED}
    with pytest.raises(PlanError, match=r"^line \d+: "):
        parse(file.text)


@pytest.mark.parametrize("file", [*CHEATS, *HONEST, *GAINS], ids=lambda file: f"{file.path.parent.name}-{file.name}")
def test_every_file_says_what_it_is(file: CheatFile) -> None:
    assert "note = " in file.text.partition("---*/")[0]
    assert bool(file.caught) == (file.path.parent.name == "kernels")
    assert Outcome.PASSED not in file.caught


def test_no_two_kernels_are_the_same() -> None:
    ids = [file.kernel.id for file in (*CHEATS, *HONEST, *GAINS) if file.kernel]
    assert len(set(ids)) == len(ids)
