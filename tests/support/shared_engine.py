"""One engine on the emulated device, shared by all tests of commands because starting it takes several seconds.

The fixtures are imported by `tests/conftest.py`.
"""

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Profile
from evolve import wiring
from evolve.cli.app import main
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
    use(emulated_engine, monkeypatch)


def use(shared: Engine, patch: pytest.MonkeyPatch) -> None:
    def engine(kind: str, _watch: object = None, _gpus: str = "") -> Engine:
        assert kind == "emulated"
        return KeptOpen(shared)

    patch.setattr(wiring, "engine", engine)


def run_here(shared: Engine, folder: Path, *arguments: str, extra: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command in this process, in a folder, on the shared engine; return its exit code and all that it printed.

    Only `extra` sets variables of evolve and of models.
    """
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        for name in [name for name in os.environ if name.startswith(("OPENAI", "EVOLVE"))]:
            patch.delenv(name)
        for name, value in {"COLUMNS": "120", **(extra or {})}.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        use(shared, patch)
        code = main(list(arguments))
    return code, printed.getvalue()
