"""A compiler that somebody kills says nothing about the kernel."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from device_kernels import bound, single

from archive.records import Outcome
from evolve.devices.device import RejectedError
from evolve.devices.emulated import compiler

GOOD = single("y[threadIdx.x] = 1;", "int* y")


def built(folder: Path, kills: int, way: str = "kill -9 $$") -> compiler.Built:
    """Compile with a compiler that is killed so many times before it takes the kernel."""
    real = compiler.find_toolchain()
    script = folder / "compiler"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *kernel.cpp*)\n    echo once >> {folder}/calls\n'
        f"    if [ $(wc -l < {folder}/calls) -le {kills} ]; then {way}; fi;;\nesac\n"
        f'exec {shlex.join(real.command)} "$@"\n'
    )
    script.chmod(0o755)
    work = folder / "work"
    work.mkdir()
    toolchain = replace(real, command=(str(script),))
    return compiler.build(bound(GOOD, {"y": torch.zeros(32, dtype=torch.int32)}), toolchain, work)


@pytest.mark.parametrize(
    "way", ["kill -9 $$", "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"]
)
def test_a_compiler_that_was_killed_gets_another_try(tmp_path: Path, way: str) -> None:
    assert built(tmp_path, 1, way).library.is_file()


def test_a_compiler_that_is_killed_again_and_again_is_an_error_of_compilation(tmp_path: Path) -> None:
    with pytest.raises(RejectedError) as caught:
        built(tmp_path, 100)
    assert caught.value.outcome is Outcome.COMPILE_ERROR
