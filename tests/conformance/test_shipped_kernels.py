"""Full evaluations of the kernels that come with the package: of some, or of all with `--every-kernel`."""

from collections.abc import Iterator

import pytest
from chosen_ops import EXACT
from device_kernels import EVERY_DEVICE
from each import sampled

from archive.library import op_names, shipped
from archive.records import Evaluation
from evolve import wiring
from evolve.devices import choose
from evolve.engines.engine import Engine, Job
from evolve.op_on_device import accepts_any
from reference_ops import catalog

QUICK = ("gelu",)  # ops whose kernels the quick run tests


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "op" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-kernel")
        metafunc.parametrize("op", op_names() if every else sampled(EXACT, quick=QUICK))


@pytest.fixture(scope="module", params=EVERY_DEVICE)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = wiring.engine(request.param)
    yield made
    made.close()


def test_a_shipped_kernel_passes(engine: Engine, op: str) -> None:
    kind, loaded = engine.info.kind, catalog.load(op)
    kernels = [one for one in shipped(op) if choose.supports(kind, one) and accepts_any(one, loaded, kind)]
    verdicts: list[Evaluation] = list(engine.evaluate(Job(kernel, op) for kernel in kernels))
    assert [(verdict.outcome, verdict.log) for verdict in verdicts if not verdict.passed] == []
    assert len(verdicts) == len(kernels) >= 1
