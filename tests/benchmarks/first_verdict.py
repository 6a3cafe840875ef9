"""Benchmark of the first verdict: seconds from the start of a command until a kernel is judged. Run it with Python.

It starts `evolve run` on a task with one evaluation, first without any cached baseline and then again with them, and
prints when each line of the log appeared. The archive and the caches are its own. With `--parts`, it prints instead how
long the steps before the first line of the log take, each in a new process after the steps that it needs.
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
# Steps before a worker is ready: the name of each, the code that it needs, and the code that is timed.
PARTS = (
    ("Python", "", "pass"),
    ("import of PyTorch", "", "import torch"),
    ("import of the worker", "import torch", "import evolve.engines.worker"),
    ("import of the device", "import torch, evolve.engines.worker", "import evolve.devices.cuda.device"),
    ("NVRTC", "import evolve.devices.cuda.device", "from evolve.devices import cuda; cuda.preload_nvrtc()"),
    ("context on the GPU", "import torch", "torch.zeros(1, device='cuda')"),
    (
        "first product (cuBLAS)",
        "import torch; x = torch.ones(64, 64, device='cuda')",
        "x @ x; torch.cuda.synchronize()",
    ),
    (
        "rates of the GPU",
        "import torch; x = torch.ones(64, 64, device='cuda'); x @ x; from evolve.devices import cuda; "
        "device = cuda.make(None, None)",
        "device.info",
    ),
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("task", nargs="?", help="a task or an op [default: softmax as a KernelBench task]")
    options.add_argument("--device", default="")
    options.add_argument("--evals", type=int, default=1)
    options.add_argument("--parts", action="store_true", help="time the steps before a worker is ready")
    given = options.parse_args()
    if given.parts:
        _print_parts()
        return
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "softmax_task.py"
        task.write_text(TASK)
        for name in ("no baselines known", "baselines known"):
            archive = Path(folder) / f"{name}.db"
            command = [sys.executable, "-m", "evolve", "run", given.task or str(task), "--evals", str(given.evals)]
            command += ["--archive", str(archive), "--proposer", "offline"]
            command += ["--device", given.device] if given.device else []
            _report(name, command, {"XDG_CACHE_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"})


def _print_parts() -> None:
    for name, needed, step in PARTS:
        code = f"import time\n{needed}\nbegan = time.perf_counter()\n{step}\nprint(time.perf_counter() - began)"
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        whole = time.perf_counter() - began
        took = f"{float(done.stdout):7.2f} s" if done.returncode == 0 else "  failed "
        fault = "".join(done.stderr.strip().splitlines()[-1:]) if done.returncode else ""
        print(f"{name:24}{took}, the whole process {whole:6.2f} s  {fault}".rstrip(), flush=True)


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
