"""One engine on the emulated device, shared by all tests of commands because starting it takes several seconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve import wiring
from evolve.engines.engine import Engine, Job


@dataclass(frozen=True)
class KeptOpen:
    """An engine that stays open when a command closes it."""

    engine: Engine

    @property
    def info(self) -> DeviceInfo:
        return self.engine.info

    @property
    def unprofiled(self) -> str:
        return self.engine.unprofiled

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        return self.engine.evaluate(jobs)

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        return self.engine.profile(kernel, op, workload)

    def close(self) -> None:
        """Do nothing, so that the next command can use the engine."""


@pytest.fixture(scope="session")
def emulated_engine() -> Iterator[Engine]:
    engine = wiring.engine("emulated")
    yield engine
    engine.close()


@pytest.fixture
def shared_engine(emulated_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands on the emulated device use the shared engine; any other device is an error."""

    def engine(kind: str, _watch: object = None, _gpus: str = "") -> Engine:
        assert kind == "emulated"
        return KeptOpen(emulated_engine)

    monkeypatch.setattr(wiring, "engine", engine)
