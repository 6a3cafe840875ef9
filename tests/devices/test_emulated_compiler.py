"""The host compiler: precompiled headers, and compilers that are killed."""

import shlex
import subprocess
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
    """Compile with a compiler that is killed `kills` times before it works."""
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
def test_a_killed_compiler_is_started_again(tmp_path: Path, way: str) -> None:
    assert built(tmp_path, 1, way).library.is_file()


def test_a_compiler_that_is_killed_every_time_is_a_compile_error(tmp_path: Path) -> None:
    with pytest.raises(RejectedError) as caught:
        built(tmp_path, 100)
    assert caught.value.outcome is Outcome.COMPILE_ERROR


@pytest.mark.parametrize("read_ahead", [b"", b"gpch, or what was left of it"])
def test_kernels_compile_without_precompiled_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_ahead: bytes
) -> None:
    monkeypatch.setattr(compiler, "precompiled_header", lambda _: read_ahead)
    assert built(tmp_path, 0).library.is_file()


def test_gcc_compiles_the_headers_once_for_all_kernels(tmp_path: Path) -> None:
    compiler.precompiled_header.cache_clear()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        toolchain = compiler.find_toolchain()
        if "gcc" not in version(toolchain):
            pytest.skip("only GCC reads GCC's precompiled headers")
        compiler.build(bound(GOOD, {"y": torch.zeros(32, dtype=torch.int32)}), toolchain, tmp_path / name)
        assert (tmp_path / name / "emulated.h.gch").read_bytes().startswith(compiler.GCC_MARK)
    assert compiler.precompiled_header.cache_info().misses == 1
    assert len({(tmp_path / name / "emulated.h.gch").resolve() for name in ("one", "two")}) == 1


def test_prepared_parts_are_not_compiled_again(tmp_path: Path) -> None:
    prepared = (compiler.runtime_object, compiler.precompiled_header)
    for made in prepared:
        made.cache_clear()
    compiler.prepare()
    compiler.build(bound(GOOD, {"y": torch.zeros(32, dtype=torch.int32)}), compiler.find_toolchain(), tmp_path)
    assert [made.cache_info().misses for made in prepared] == [1, 1]


def version(toolchain: compiler.Toolchain) -> str:
    told = subprocess.run([*toolchain.command, "--version"], capture_output=True, text=True, check=True).stdout
    return "gcc" if "Free Software Foundation" in told else told
