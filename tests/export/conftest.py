"""Fixtures for tests of graphs in which calls are redirected to a package."""

from collections.abc import Iterator

import pytest
import torch
from emulated_machine import EmulatedMachine


@pytest.fixture(scope="module")
def machine() -> EmulatedMachine:
    return EmulatedMachine(by_reference=True)


@pytest.fixture
def forgotten(machine: EmulatedMachine) -> Iterator[None]:
    """Begin without launches and compiled graphs, and with the same random numbers."""
    machine.launched.clear()
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
