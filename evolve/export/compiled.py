"""Cubins of exported kernels, for the GPUs and the workloads on which they won."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from archive.binding import bind
from archive.kernel import Kernel
from archive.records import Evaluation
from evolve.devices.cuda.translation import source
from evolve.export.template import cubins
from evolve.export.template.calls import MissingError
from evolve.export.template.manifest import Shipped, ShippedCubin
from evolve.export.template.nvrtc import CompileError
from evolve.op_on_device import point
from reference_ops.op import Op


@dataclass(frozen=True)
class Compiled:
    """Kernels with their cubins, the files of these, and why some are missing."""

    shipped: tuple[Shipped, ...]
    files: Mapping[str, bytes]
    missing: str = ""


def compiled(
    op: Op, shipped: Sequence[Shipped], kernels: Mapping[str, Kernel], evaluations: Sequence[Evaluation]
) -> Compiled:
    """Compile the kernels of an op for every GPU and workload of their measurements."""
    found: list[Shipped] = []
    files: dict[str, bytes] = {}
    missing = ""
    for one in shipped:
        cubins_of_it: dict[str, ShippedCubin] = {}
        for text, arch in _sources(op, one, kernels[one.id], evaluations):
            key = cubins.key(text, arch)
            try:
                image = cubins.compiled(text, arch)
            except (MissingError, CompileError) as error:
                missing = str(error)
                continue
            file = f"cubins/{op.name}/{arch}-{key[:16]}.cubin"
            files[file] = image
            cubins_of_it[key] = ShippedCubin(arch, key, file, hashlib.sha256(image).hexdigest())
        found.append(replace(one, cubins=tuple(cubins_of_it.values())))
    return Compiled(tuple(found), files, missing)


def _sources(
    op: Op, shipped: Shipped, kernel: Kernel, evaluations: Sequence[Evaluation]
) -> dict[tuple[str, str], None]:
    """Return the texts that are compiled, with their architectures, each once."""
    measured = {(one.device, one.times.workload) for one in shipped.measured}
    devices = {one.device.name: one.device for one in evaluations if one.kernel_id == shipped.id}
    return {
        (source(bind(kernel, point(op, workload, device))), device.arch): None
        for device in devices.values()
        for workload in op.gpu
        if (device.name, workload.key) in measured
    }
