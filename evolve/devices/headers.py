"""Where CUDA's own headers are: in the wheels, or in an installed toolkit."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

NEEDED = "cuda_fp16.h"


def cuda_include_dirs() -> tuple[Path, ...]:
    """The folders with CUDA's headers, of one installation; empty where there is none. The wheels come first."""
    found = next((folder for folder in _candidates() if (folder / NEEDED).is_file()), None)
    return (found, *_companions(found)) if found else ()


def _companions(folder: Path) -> list[Path]:
    """CUDA 12's wheels spread the headers over several folders: `crt/` and `nv/` lie beside the runtime's."""
    beside = (folder.parents[1] / name / "include" for name in ("cuda_nvcc", "cuda_cccl"))
    return [path for path in beside if folder.parent.name == "cuda_runtime" and path.is_dir()]


def _candidates() -> Iterator[Path]:
    for key in ("purelib", "platlib"):
        packages = Path(sysconfig.get_path(key)) / "nvidia"
        yield from (packages / "cu13" / "include", packages / "cu12" / "include")
        yield packages / "cuda_runtime" / "include"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
    yield Path("/usr/local/cuda/include")
