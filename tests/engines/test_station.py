"""A station, which evaluates for a driver on another machine: its requests and its reports."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bad_kernels import twice_kernel
from fake_engine import FakeEngine, verdict

from archive.kernel import Kernel
from archive.records import Evaluation, Traits
from evolve.engines.engine import Job
from evolve.engines.messages import Assignment, Done, decode, encode
from evolve.engines.station import (
    Events,
    Hello,
    OwnCodes,
    RemoteJob,
    Station,
    StationFault,
    own_versions,
)
from evolve.errors import UserError
from evolve.evaluation.requests import ProfileRequest, ProfileResult

OWN = own_versions()


def parcel(kernel: Kernel, number: int = 7, op: str = "twice", file: str = "", text: str = "") -> RemoteJob:
    return RemoteJob(
        number, encode(Assignment(kernel.text, op, (), confirm=False, shapes_seed=0, device=None)), True, file, text
    )


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def station(fake: FakeEngine) -> Iterator[Station]:
    made = Station(lambda _watch: (fake, 3))
    assert isinstance(made.start(OWN), Hello)
    yield made
    made.close()


def all_events(station: Station, verdicts: int) -> Events:
    found = Events()
    while len(found.verdicts) + len(found.faults) < verdicts:
        more = station.events()
        found.verdicts += more.verdicts
        found.faults += more.faults
    return found


def test_a_verdict_comes_with_the_number_of_its_job(station: Station) -> None:
    kernel = twice_kernel()
    station.submit([parcel(kernel, 7), parcel(kernel, 8)])
    found = all_events(station, 2).verdicts
    assert sorted(number for number, _ in found) == [7, 8]
    for _, line in found:
        done = decode(line)
        assert isinstance(done, Done)
        assert (done.evaluation.kernel_id, done.evaluation.passed) == (kernel.id, True)


def test_another_version_of_the_package_is_refused() -> None:
    station = Station(lambda _watch: pytest.fail("no engine is made"))
    answer = station.start(replace(OWN, code="0123abcd", package="9.9"))
    assert isinstance(answer, StationFault)
    assert f"evolve-kernels {OWN.package} (code {OWN.code})" in answer.message
    assert "started with 9.9 (code 0123abcd)" in answer.message
    assert "install the same version" in answer.hint


def test_an_error_at_the_start_is_a_fault_with_its_hint() -> None:
    def make(_watch: object) -> tuple[FakeEngine, int]:
        raise UserError("NVRTC cannot be loaded", "install it")

    answer = Station(make).start(OWN)
    assert isinstance(answer, StationFault)
    assert (answer.message, answer.hint) == ("NVRTC cannot be loaded", "install it")


def test_an_error_of_a_job_is_a_fault_and_the_station_goes_on(station: Station, fake: FakeEngine) -> None:
    def judge(job: Job) -> Evaluation:
        if job.op == "unknown":
            raise UserError("there is no op `unknown`", "name another")
        return verdict(job)

    fake.judge = judge
    station.submit([parcel(twice_kernel(), op="unknown")])
    (fault,) = all_events(station, 1).faults
    assert (fault.message, fault.hint) == ("there is no op `unknown`", "name another")
    station.submit([parcel(twice_kernel())])
    assert all_events(station, 1).verdicts


def test_the_file_of_an_op_is_written_where_it_is_missing_or_differs(
    station: Station, fake: FakeEngine, tmp_path: Path
) -> None:
    here, elsewhere = tmp_path / "here.py", tmp_path / "elsewhere.py"
    here.write_text("op = 1\n")
    station.submit([parcel(twice_kernel(), 0, f"{here}:f", str(here), "op = 1\n")])
    station.submit([parcel(twice_kernel(), 1, f"{here}:f", str(here), "op = 2\n")])
    station.submit([parcel(twice_kernel(), 2, str(elsewhere), str(elsewhere), "op = 3\n")])
    all_events(station, 3)
    same, newer, missing = (job.op for job in fake.jobs)
    assert same == f"{here}:f"
    assert newer.endswith("/here.py:f")
    assert Path(newer.removesuffix(":f")).read_text() == "op = 2\n"
    assert Path(missing).read_text() == "op = 3\n"


def test_a_station_answers_that_it_has_no_profiler(station: Station, fake: FakeEngine) -> None:
    fake.unprofiled = "no profiler"
    answer = station.ask(encode(ProfileRequest(twice_kernel().text, "twice", "n=1")))
    assert isinstance(answer, bytes)
    assert decode(answer) == ProfileResult(None, "no profiler")


def test_the_second_kernel_with_a_machine_code_is_a_duplicate_of_the_first() -> None:
    codes = OwnCodes()
    assert codes.by_code("a", "code") == codes.by_code("a", "code") == ""
    assert codes.by_code("b", "code") == "compiles to the same machine code as kernel a"


def test_a_duplicate_of_a_kernel_of_another_station_is_found_when_its_verdict_arrives() -> None:
    from evolve.engines.ray_actors import unique

    traits = Traits("code", 4, 4, 0, 8, 128, 1, tensor_cores=False, atomics=False, occupancy=1.0)
    codes, kernel = OwnCodes(), twice_kernel()
    codes.by_code("another", "code")
    job = Job(kernel, "twice", duplicates=codes)
    found = Evaluation(**{**vars(verdict(job)), "traits": traits})
    assert unique(job, found).outcome.value == "duplicate"
    assert unique(Job(kernel, "twice"), found) is found
