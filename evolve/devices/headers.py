"""Where CUDA's own headers are: in the wheels, or in an installed toolkit."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

RUNTIME, LIBRARY = "cuda_fp16.h", "cuda/std/type_traits"


def cuda_include_dirs() -> tuple[Path, ...]:
    """The folders with CUDA's headers; empty where there are none. The wheels come first.

    One installation may be spread over several folders: CUDA 12's wheels, or PyTorch's, which lack CCCL.
    """
    runtime = next((folder for folder in _candidates() if (folder / RUNTIME).is_file()), None)
    if runtime is None:
        return ()
    compiler = runtime.parents[1] / "cuda_nvcc" / "include"
    parts = (path for folder in _candidates() for path in (folder, folder / "cccl"))
    library = next((path for path in parts if (path / LIBRARY).is_file()), None)
    return tuple(dict.fromkeys(path for path in (runtime, compiler, library) if path and path.is_dir()))


def _candidates() -> Iterator[Path]:
    for key in ("purelib", "platlib"):
        packages = Path(sysconfig.get_path(key)) / "nvidia"
        yield from (packages / "cu13" / "include", packages / "cu12" / "include")
        yield from (packages / "cuda_runtime" / "include", packages / "cuda_cccl" / "include")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "include"
    yield Path("/usr/local/cuda/include")
