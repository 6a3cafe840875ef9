"""Benchmark of an exported package with every op of the catalog: time of its import and first call beyond PyTorch's.

    PYTHONPATH=. python tests/benchmarks/package_start.py [--ops softmax gelu] [--starts 9]

Each figure is the shortest of several processes. Measured times are made up: only their number matters here.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from gpu_records import exported

from archive import library
from reference_ops import catalog

PACKAGE = "started_package"
PROGRAM = f"""
import json, time
import torch

def taken(step):
    start = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - start)

def imported():
    global package
    import {PACKAGE} as package

x = torch.randn(4, 8)
steps = {{
    "import": imported,
    "first function": lambda: package.softmax,
    "first call": lambda: package.softmax(x, -1),
    "another call": lambda: package.softmax(x, -1),
    "layers": lambda: package.nn,
}}
print(json.dumps({{name: taken(step) for name, step in steps.items()}}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", help="ops of the package, softmax among them [default: all]")
    parser.add_argument("--starts", type=int, default=9, help="processes to start")
    given = parser.parse_args()
    names = given.ops or [name for name in catalog.names() if any(not one.plan.when for one in library.shipped(name))]
    with tempfile.TemporaryDirectory() as folder:
        exported(Path(folder), *names, package=PACKAGE)
        runs = [started(Path(folder) / "out") for _ in range(given.starts + 1)][1:]  # the first one writes .pyc files
    print(f"{len(names)} ops, milliseconds beyond `import torch`, the shortest of {given.starts} processes")
    for step in runs[0]:
        print(f"{step:>16}: {min(run[step] for run in runs):8.2f}")


def started(folder: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main()
