"""Compiler messages: those about foreign files are left out; all others are kept."""

import shutil
import subprocess
from pathlib import Path

import pytest

from evolve.devices.cuda.compiler import _nvrtc
from evolve.devices.device import RejectedError
from evolve.devices.source_text import LEFT_OUT, without_foreign_files

SECRET = "hunter2"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}:x:0:0;\n")
    return file


def test_a_gpu_compiler_does_not_quote_foreign_files(secret: Path) -> None:
    with pytest.raises(RejectedError) as caught:
        _nvrtc(f'#include "{secret}"\nint mine\n__device__ int next;', "sm_90a")
    assert SECRET not in caught.value.log
    assert LEFT_OUT in caught.value.log
    assert "kernel.cu" in caught.value.log


def test_a_gpu_compilers_messages_about_the_kernel_itself_are_kept() -> None:
    with pytest.raises(RejectedError) as caught:
        _nvrtc("__device__ int f() { return wrong; }", "sm_90a")
    assert 'identifier "wrong" is undefined' in caught.value.log
    assert "return wrong;" in caught.value.log
    assert LEFT_OUT not in caught.value.log


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("reads", ['#include "{file}"', '#line 1 "{file}"\nint first(;\n#line 4 "kernel.cu"'])
def test_a_host_compiler_does_not_quote_foreign_files(secret: Path, tmp_path: Path, reads: str) -> None:
    unit = tmp_path / "kernel.cpp"
    unit.write_text(f'#line 1 "kernel.cu"\n{reads.format(file=secret)}\nint mine = wrong;\n')
    told = subprocess.run(
        ["g++", "-c", str(unit), "-o", "/dev/null"], capture_output=True, text=True, check=False
    ).stderr
    assert SECRET in told
    log = without_foreign_files(told, ("kernel.cu",), ())
    assert SECRET not in log
    assert "wrong" in log
    assert LEFT_OUT in log


def test_headers_of_known_folders_are_quoted(tmp_path: Path) -> None:
    log = f"{tmp_path}/a.h:3:1: error: here\n    3 | quoted"
    assert without_foreign_files(log, (), (tmp_path,)) == log


@pytest.mark.parametrize("path", ["../b.h", "{folder}/../b.h", "{folder}x/b.h", "b.h"])
def test_a_path_that_leads_out_of_a_known_folder_is_foreign(tmp_path: Path, path: str) -> None:
    log = f"{path.format(folder=tmp_path)}:3:1: error: here\n    3 | quoted"
    assert without_foreign_files(log, ("kernel.cu",), (tmp_path,)) == LEFT_OUT


def test_messages_of_the_linker_and_of_ptxas_are_kept() -> None:
    log = "/usr/bin/ld: kernel.o: undefined reference to `f'\nptxas info    : Used 4 registers\n"
    log += "ptxas application ptx input, line 3; error"
    assert without_foreign_files(log, ("application ptx input",), ()) == log


def test_messages_about_files_that_ptx_includes_are_left_out() -> None:
    assert SECRET not in without_foreign_files(f"ptxas /etc/secret, line 1; fatal: near '{SECRET}'", (), ())
