"""Where CUDA's headers are: in the toolkit's wheels beside torch, or in an installed toolkit."""

import os
import site
import sys
from functools import cache
from pathlib import Path

WHEEL_FOLDERS = ("nvidia/cu13/include", "nvidia/cu12/include", "nvidia/cuda_runtime/include")


@cache
def cuda_include_dirs() -> tuple[Path, ...]:
    """The folders to search, best first; empty where there are no CUDA headers at all."""
    roots = dict.fromkeys([*sys.path, *site.getsitepackages()])
    wheels = [Path(root) / folder for root in roots for folder in WHEEL_FOLDERS]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    toolkits = [Path(home) / "include" for home in homes if home]
    return tuple(folder for folder in (*wheels, *toolkits) if (folder / "cuda_fp16.h").is_file())[:1]
