"""An object file that this system's C++ compiler makes from a source text."""

import subprocess
from pathlib import Path

import pytest

from evolve.devices import object_file
from evolve.devices.emulated.compiler import find_compiler


def compiled_object(source: str, folder: Path) -> bytes:
    """The compiled source as an ELF file; skips the test where this system's object files are of another format."""
    (folder / "a.cpp").write_text(source)
    command = find_compiler()
    assert command
    subprocess.run([*command, "-c", "a.cpp", "-o", "a.o"], cwd=folder, check=True)
    image = (folder / "a.o").read_bytes()
    if not image.startswith(object_file.MAGIC):
        pytest.skip("this system's object files are not ELF")
    return image
