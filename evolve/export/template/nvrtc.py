"""NVRTC of PyTorch's wheels by ctypes: compiles CUDA C++ to a cubin."""

import ctypes
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from evolve.devices.cuda.translation import EMPTY_HEADERS, options
from evolve.devices.prelude import RUNTIME, cuda_include_dirs
from evolve.export.template.calls import MissingError

# the second pattern matches the name in PyTorch wheels that contain all of CUDA
FILES = "libnvrtc.so*", "libnvrtc-*.so*"
PARTS = "builtins", ".alt."  # parts of NVRTC that it loads itself
CACHES_SINCE = (12, 9)  # since this version, NVRTC has a cache of its own
OTHER_FOLDERS = (Path("cuda_runtime", "include"), Path("cu12", "include"))  # folders of headers other than NVRTC's own
LOG_CHARACTERS = 4000


class CompileError(RuntimeError):
    """Raised when NVRTC refuses a source; the message is its log."""


@dataclass(frozen=True)
class Nvrtc:
    """A loaded NVRTC, and the folders with the headers that belong to it."""

    library: ctypes.CDLL
    version: tuple[int, int]
    headers: tuple[Path, ...]

    def compiled(self, source: str, arch: str) -> bytes:
        """Return a cubin for an architecture such as sm_90a. Raise a CompileError with the compiler's messages."""
        given = [option.encode() for option in options(arch, self.headers)]
        given += [b"--no-cache"] if self.version >= CACHES_SINCE else []
        program, count = ctypes.c_void_p(), len(EMPTY_HEADERS)
        names = (ctypes.c_char_p * count)(*(name.encode() for name in EMPTY_HEADERS))
        texts = (ctypes.c_char_p * count)(*[b""] * count)
        lib, text = self.library, source.encode()
        _checked(lib.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", count, texts, names))
        try:
            if lib.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given)):
                log = _read(partial(lib.nvrtcGetProgramLogSize, program), partial(lib.nvrtcGetProgramLog, program))
                raise CompileError(log.rstrip(b"\0").decode(errors="replace").strip()[:LOG_CHARACTERS])
            return _read(partial(lib.nvrtcGetCUBINSize, program), partial(lib.nvrtcGetCUBIN, program))
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def nvrtc() -> Nvrtc:
    """Return the NVRTC of this environment. Raise a MissingError if there is none."""
    for path in _libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        _checked(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        headers = _headers(Path(path))
        if not headers:
            raise MissingError(f"CUDA's headers ({RUNTIME}) are not installed; CUDA builds of PyTorch include them")
        return Nvrtc(library, (major.value, minor.value), headers)
    raise MissingError("NVRTC is not installed; CUDA builds of PyTorch include it")


def _libraries() -> Iterator[Path | str]:
    """Yield files of NVRTC. Those of PyTorch's CUDA version come first: a driver may be too old for a later version."""
    major = (torch.version.cuda or "").partition(".")[0]
    found = [path for folder in _folders() for pattern in FILES for path in sorted(folder.glob(pattern))]
    found = [path for path in found if not any(part in path.name for part in PARTS)]
    yield from sorted(found, key=lambda path: _major(path) != major)
    yield from (f"libnvrtc.so.{number}" for number in dict.fromkeys((major, "13", "12")) if number)


def _major(library: Path) -> str:
    match = re.search(r"\.so\.(\d+)", library.name)
    return match[1] if match else ""


def _folders() -> Iterator[Path]:
    for packages in dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib")):
        yield from sorted(Path(packages, "nvidia").glob("*/lib"))
    yield Path(torch.__file__).parent / "lib"
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            yield Path(root, "lib64")


def _headers(library: Path) -> tuple[Path, ...]:
    """Return the folders of headers, first those that came with this NVRTC."""
    home = library.parent.parent
    if not library.is_absolute():  # the loader found it in an unknown folder
        return cuda_include_dirs()
    beside = [home / "include", *(home.parent / other for other in OTHER_FOLDERS)]
    own = [folder for folder in beside if (folder / RUNTIME).is_file()][:1]
    return tuple(dict.fromkeys((*own, *cuda_include_dirs())))


def _read(size_of: "partial[int]", text_of: "partial[int]") -> bytes:
    size = ctypes.c_size_t()
    _checked(size_of(ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _checked(text_of(buffer))
    return buffer.raw


def _checked(code: int) -> None:
    if code:
        raise RuntimeError(f"NVRTC failed with error {code}")
