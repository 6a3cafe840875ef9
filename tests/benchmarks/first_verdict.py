"""Benchmark of the first verdict: seconds from the start of a command until a kernel is judged. Run it with Python.

It starts `evolve run` on a task with one evaluation, first without any cached baseline and then again with them, and
prints when each line of the log appeared. The archive and the caches are its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A task that computes the same as an op of the catalog, whose kernels are adapted to the task: no model is needed.
TASK = """
import torch
from torch import nn

batch_size, dim = 4096, 8192


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return []
"""
RIGHT, FASTEST = "right: ", "fastest on"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("task", nargs="?", help="a task or an op [default: softmax as a KernelBench task]")
    options.add_argument("--device", default="")
    options.add_argument("--evals", type=int, default=1)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "softmax_task.py"
        task.write_text(TASK)
        for name in ("no baselines known", "baselines known"):
            archive = Path(folder) / f"{name}.db"
            command = [sys.executable, "-m", "evolve", "run", given.task or str(task), "--evals", str(given.evals)]
            command += ["--archive", str(archive), "--proposer", "offline"]
            command += ["--device", given.device] if given.device else []
            _report(name, command, {"XDG_CACHE_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"})


def _report(name: str, command: list[str], caches: dict[str, str]) -> None:
    print(f"\n{name}", flush=True)
    environment = {**os.environ, **caches, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    began, known = time.monotonic(), dict[str, float]()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            since = time.monotonic() - began
            print(f"{since:7.2f} s  {line.rstrip()}", flush=True)
            for mark in (RIGHT, FASTEST):
                if mark in line:
                    known.setdefault(mark, since)
    first = min(known.values(), default=None)
    print(f"first known to be right after {first:.2f} s" if first else "no kernel was right", flush=True)
    if FASTEST in known:
        print(f"first verdict after {known[FASTEST]:.2f} s", flush=True)


if __name__ == "__main__":
    main()
