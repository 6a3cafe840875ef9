"""`evolve confirm` with a scripted engine instead of a device."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from commandline import BEST, CHILD, COLS, ROWS, evolve, filled
from records import GPU, confirmed, failed

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.store import open_archive
from evolve import wiring
from evolve.devices import choose
from evolve.engines.engine import Job

Capture = pytest.CaptureFixture[str]
OTHER_GPU = replace(GPU, name="Another GPU")


@dataclass(frozen=True)
class ScriptedEngine:
    """Confirms every kernel except those in `failing`."""

    failing: tuple[str, ...] = ()
    info: DeviceInfo = GPU
    unprofiled: str = ""

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            assert job.confirm
            if job.kernel.id in self.failing:
                yield failed(job.kernel.id, Outcome.UNSAFE, created=9.0)
            else:
                yield confirmed(job.kernel.id, self.info, 9.0, **{ROWS: 20.0, COLS: 30.0})

    def profile(self, kernel: Kernel, op: str, workload: str) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = filled(tmp_path / "archive.db")
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    monkeypatch.setenv("COLUMNS", "120")
    return path


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScriptedEngine], None]:
    def use(engine: ScriptedEngine) -> None:
        monkeypatch.setattr(choose, "device_kind", lambda _requested="": "cuda")
        monkeypatch.setattr(wiring, "engine", lambda _kind, _watch=None: engine)

    return use


Use = Callable[[ScriptedEngine], None]


def test_each_champion_is_confirmed_and_its_duels_are_printed(archive: Path, on: Use, capsys: Capture) -> None:
    on(ScriptedEngine())
    code, output, _ = evolve(capsys, "confirm", "softmax")
    assert code == 0
    assert f"softmax: {BEST.id[:8]} confirmed: won 2 of 2 duels with PyTorch, at best 5.00x" in output
    row = next(line for line in output.splitlines() if line.startswith("8×16"))
    assert row.split()[2:] == [BEST.id[:8], "compile", "5.00x", "4.90–5.10", "1.0%", "won"]
    assert f"{BEST.id[:8]} under the sanitizer: memcheck, racecheck, initcheck and synccheck found nothing" in output


def test_a_failed_confirmation_is_exit_code_1_and_the_next_champion_is_confirmed(
    archive: Path, on: Use, capsys: Capture
) -> None:
    on(ScriptedEngine(failing=(BEST.id,)))
    code, output, _ = evolve(capsys, "confirm", "softmax")
    assert code == 1
    assert f"{BEST.id[:8]} failed its confirmation: unsafe" in output
    assert f"evolve evaluate --explain {BEST.id[:8]} --archive {archive}" in output
    verdicts = {e.kernel_id: e for e in open_archive(archive).find(Evaluation, "softmax") if e.device == GPU}
    assert verdicts[BEST.id].outcome is Outcome.UNSAFE
    assert verdicts[CHILD.id].confirmed


def test_confirming_again_succeeds_and_prints_the_duels(archive: Path, on: Use, capsys: Capture) -> None:
    on(ScriptedEngine())
    assert evolve(capsys, "confirm", "softmax")[0] == 0
    code, output, errors = evolve(capsys, "confirm", "softmax")
    assert (code, errors) == (0, "")
    assert "nothing is left to confirm" in output
    assert "5.00x" in output


def test_champions_of_another_device_are_not_confirmed(archive: Path, on: Use, capsys: Capture) -> None:
    on(ScriptedEngine(info=OTHER_GPU))
    code, _, errors = evolve(capsys, "confirm", "softmax")
    assert code == 1
    assert "nothing to confirm" in errors


def test_without_a_name_every_op_of_the_catalog_is_confirmed(archive: Path, on: Use, capsys: Capture) -> None:
    on(ScriptedEngine())
    code, output, errors = evolve(capsys, "confirm")
    assert code == 0
    assert f"softmax: {BEST.id[:8]} confirmed" in output
    assert "unheard_of is not in the catalog" in errors


def test_standard_output_is_json_alone(archive: Path, on: Use, capsys: Capture) -> None:
    on(ScriptedEngine())
    _, output, _ = evolve(capsys, "confirm", "softmax", "--json")
    assert all(duel["won"] for verdict in json.loads(output) for duel in verdict["confirmed"]["duels"])
