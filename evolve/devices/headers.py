"""Where CUDA's own headers are: in the wheels, or in an installed toolkit."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

NEEDED = "cuda_fp16.h"


def cuda_include_dirs() -> tuple[Path, ...]:
    """The folders with CUDA's headers, the wheels' first; empty where CUDA is not installed."""
    return tuple(dict.fromkeys(folder for folder in _candidates() if (folder / NEEDED).is_file()))


def _candidates() -> Iterator[Path]:
    for key in ("purelib", "platlib"):
        packages = Path(sysconfig.get_path(key)) / "nvidia"
        yield from (packages / "cu13" / "include", packages / "cu12" / "include")
        yield packages / "cuda_runtime" / "include"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
    yield Path("/usr/local/cuda/include")
