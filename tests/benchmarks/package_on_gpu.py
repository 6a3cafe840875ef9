"""Self-test of a package whose kernels all run on this machine's GPU.

    PYTHONPATH=. python tests/benchmarks/package_on_gpu.py [OP...] [--calls N] [--cubins]

A package is exported in which a simple kernel of each op wins at every workload by made-up measurements, so that
kernels are chosen. The compared results are computed on the GPU. Without a GPU, kernels are compiled but do not run.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import torch  # noqa: E402
from gpu_records import H200, LONGER, archive_of, confirmed, everywhere, ops, prolonged, simple  # noqa: E402

from archive.kernel import Kernel  # noqa: E402
from archive.records import Evaluation  # noqa: E402
from evolve.export.package import Packing, export  # noqa: E402
from evolve.export.template.launching import Gpus  # noqa: E402
from reference_ops import catalog  # noqa: E402

OPS = (
    "softmax", "softmax_backward", "rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward", "silu",
    "silu_backward", "gelu", "cross_entropy", "cross_entropy_backward", "sum", "topk", "cumsum", "swiglu", "rope",
    "attention", "max_pool2d", "batch_norm", "adamw", "matmul", "lstm", "gather", "embedding",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", help="ops of the catalog [default: some of every kind]")
    parser.add_argument("--calls", type=int, default=4, help="random calls of each function [default: 4]")
    parser.add_argument("--cubins", action="store_true", help="compile for the measured sizes first")
    given = parser.parse_args()
    device = Gpus().info(torch.device("cuda", 0)) if torch.cuda.is_available() else H200
    names = given.ops or [name for name in OPS if name in catalog.names()]
    records: list[Kernel | Evaluation] = []
    for name in names:
        kernel = simple(name)
        evaluation = confirmed(kernel, everywhere(catalog.load(name), 50.0), device)
        records += [kernel, prolonged(evaluation, LONGER)]
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder, "out"), time.perf_counter()
        report = export(archive_of(Path(folder), *records), ops(*names), out, packing=Packing(cubins=given.cubins))
        print(f"{len(report.ops)} ops exported with {report.cubins} cubins in {time.perf_counter() - start:.1f} s")
        for one in report.skipped:
            print(f"skipped {one.name}: {one.reason}")
        start = time.perf_counter()
        command = [sys.executable, "-m", "primitives.selftest", "--calls", str(given.calls)]
        code = subprocess.run(command, cwd=out, check=False).returncode
        print(f"tested in {time.perf_counter() - start:.1f} s, exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
