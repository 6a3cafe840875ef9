"""A fake GPU: a device folder for this process and all processes that it starts. Its kernels are PyTorch functions."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evolve import devices

# Each process uses the card that an environment variable names.
FAKE_GPU = """
import os
import time

from archive.records import DeviceInfo
from evolve.devices.device import Tools
from evolve.devices.choose import Policy

POLICY = Policy(needs=("PyTorch",), card_variable="FAKE_GPU_VISIBLE", most_workers=2, held_out_bytes=2**13)


def missing():
    return ""


def cards():
    return tuple(os.environ.get("FAKE_GPUS", "0,1").split(","))


def make(known, cubins):
    return FakeGpu(os.environ.get(POLICY.card_variable, "first"))


def supports(kernel):
    return True


def preload():
    pass


class FakeProgram:
    resources, traits = (), None

    def __init__(self, bound, card):
        self.bound, self.log = bound, f"on card {card}"

    def launch(self, tensors):
        time.sleep(0.002)
        tensors["out"].copy_(2 * tensors["x"])


class FakeGpu:
    torch_device = "cpu"
    tools = Tools()

    def __init__(self, card):
        self.card = card
        self.info = DeviceInfo("fakegpu", "Other" if card == "odd" else "Fake", "sm_1", sms=1, shared_bytes=1024)

    def compile(self, bound):
        return FakeProgram(bound, self.card)

    def run(self, program, tensors):
        program.launch(tensors)

    def time(self, call):
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1000
"""
FOUND_BY_WORKERS = "import evolve.devices\n\nevolve.devices.__path__.append({folder!r})\n"


@contextmanager
def fake_gpus(folder: Path, more: str = "") -> Iterator[None]:
    """Add the fake GPU to the devices of this process and of its children; `more` is appended to its code."""
    (folder / "fakegpu").mkdir()
    (folder / "fakegpu" / "__init__.py").write_text(FAKE_GPU + more)
    (folder / "sitecustomize.py").write_text(FOUND_BY_WORKERS.format(folder=str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
        patch.setattr(devices, "__path__", [*devices.__path__, str(folder)])
        yield
    sys.modules.pop("evolve.devices.fakegpu", None)
