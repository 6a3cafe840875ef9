"""The files through which the processes of a test run share what they compile."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from shared_objects import SharedObjects, made, opened, share
from warm_fork_servers import plain_assembler

from archive.library import plain
from archive.records import Evaluation
from evolve.devices.cuda import compiler
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine

if sys.platform != "linux":
    pytest.skip("processes share objects on Linux only", allow_module_level=True)

KEY, OTHER = b"k" * 32, b"o" * 32


def test_a_process_finds_what_another_has_added() -> None:
    objects = made()
    assert objects.get(KEY) is None
    if (pid := os.fork()) == 0:
        opened(objects.address).add(KEY, b"compiled")
        os._exit(0)
    os.waitpid(pid, 0)
    assert objects.get(KEY) == b"compiled"
    assert objects.get(OTHER) is None


def test_forked_processes_that_add_at_once_damage_nothing() -> None:
    objects, keys = made(), [bytes([number]) * 32 for number in range(8)]
    children = []
    for key in keys:
        if (pid := os.fork()) == 0:
            for _ in range(50):
                objects.add(key, key * 999)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    assert {objects.get(key) for key in keys} <= {key * 999 for key in keys} | {None}
    assert any(objects.get(key) for key in keys)


@pytest.mark.parametrize("left", ["contents", "places"])
def test_a_process_that_is_killed_while_it_adds_leaves_nothing_wrong(left: str) -> None:
    objects = made()
    parts = {"contents": [objects._contents], "places": [objects._contents, objects._places]}[left]
    for file in parts:  # a part of what it would have written
        os.pwrite(file, b"lost", os.fstat(file).st_size)
    objects.add(KEY, b"compiled")
    assert objects.get(KEY) == b"compiled"


def test_damaged_contents_are_compiled_again() -> None:
    objects = made()
    objects.add(KEY, b"compiled")
    os.pwrite(objects._contents, b"X", 0)
    assert objects.get(KEY) is None


def test_nothing_is_added_while_a_stopped_process_holds_the_files() -> None:
    objects = made()
    ready, go_on = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        with SharedObjects._locked(objects):
            os.write(ready[1], b"1")
            os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    objects.add(KEY, b"compiled")
    os.write(go_on[1], b"1")
    os.waitpid(pid, 0)
    assert objects.get(KEY) is None
    objects.add(KEY, b"compiled")
    assert objects.get(KEY) == b"compiled"


def test_a_kernel_is_compiled_once_for_both_of_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, compiled = made(), []

    def compile_here(source: str, arch: str) -> compiler._Output:
        compiled.append((source, arch))
        return compiler._Output(b"image of " + source.encode(), "log", b"ptx")

    for _ in range(2):
        monkeypatch.setattr(compiler, "_nvrtc", compile_here)
        share(objects, monkeypatch.setattr)
        for source, arch in (("one", "sm_90a"), ("one", "sm_80"), ("two", "sm_90a")):
            found = compiler._nvrtc(source, arch)
            assert (found.image, found.log, found.ptx) == (b"image of " + source.encode(), "log", b"ptx")
    assert compiled == [("one", "sm_90a"), ("one", "sm_80"), ("two", "sm_90a")]


def verdict() -> Evaluation:
    """Evaluate the plain softmax with a new engine."""
    (kernel,) = plain("softmax")
    engine = LocalEngine("emulated", 1)
    try:
        (found,) = engine.evaluate([Job(kernel, kernel.op)])
    finally:
        engine.close()
    return found


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_a_plain_assembler_makes_other_machine_code_and_the_verdict_is_the_same() -> None:
    usual = verdict()
    with plain_assembler():
        plainly = verdict()
    assert usual.passed
    assert plainly.passed
    assert usual.traits
    assert plainly.traits
    assert usual.traits.code != plainly.traits.code


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "CUDA_HOME"])
def test_a_plain_assembler_is_used_whatever_earlier_tests_left_in_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = verdict()
    monkeypatch.setenv(name, str(tmp_path))
    with plain_assembler():
        plainly = verdict()
    assert usual.traits
    assert plainly.traits
    assert usual.traits.code != plainly.traits.code
