"""Object files built by this system's C++ compiler."""

import subprocess
from pathlib import Path

import pytest

from evolve.devices import object_file
from evolve.devices.emulated.compiler import find_compiler


def compiled_object(source: str, folder: Path) -> bytes:
    """Return the compiled source as an ELF file; skip the test if this system's object files have another format."""
    (folder / "a.cpp").write_text(source)
    command = find_compiler()
    assert command
    subprocess.run([*command, "-c", "a.cpp", "-o", "a.o"], cwd=folder, check=True)
    image = (folder / "a.o").read_bytes()
    if not image.startswith(object_file.MAGIC):
        pytest.skip("this system's object files are not ELF")
    return image
