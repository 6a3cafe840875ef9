"""`evolve profile`: read the GPU's counters while a kernel runs, and name the bottleneck."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from archive.kernel import Kernel
from archive.records import Evaluation
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, ExampleOption, JsonOption, KernelArgument, with_example
from evolve.cli.session import engine_on
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.engines import trial
from evolve.errors import UserError
from evolve.report.profile import facts_of_profile, profile_details
from evolve.report.progress import Phases
from evolve.report.words import console, print_json, short

if TYPE_CHECKING:
    from reference_ops.op import Op

WIDEST_ACCESS_BYTES = 16
OP_HELP = "File of the kernel's op, if the op is not in the catalog."
WORKLOAD_HELP = "Workload to profile, such as `n=4096 float32` [default: the one farthest from the speed of light]."


def profile(
    kernel: KernelArgument,
    op: Annotated[str, typer.Argument(metavar="[FILE.py]", help=OP_HELP, show_default=False)] = "",
    workload: Annotated[str, typer.Option("--workload", metavar="TEXT", help=WORKLOAD_HELP, show_default=False)] = "",
    example: ExampleOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Profile a kernel on this GPU with NVIDIA's ncu. Print its counters and its bottleneck."""
    output = console(stderr=as_json)
    with closing(wiring.archive(archive)) as store:
        found, op = lookup.kernel(store, kernel), with_example((op,), example)[0]
        loaded = _loaded(op, found, workload)
        if not policy_of(kind := choose.device_kind()).times_are_gpu_times:
            raise UserError(
                "profiling needs an NVIDIA GPU, and none was found", "`evolve doctor` shows what is missing"
            )
        evaluations = store.find(Evaluation, kernels=[found.id])
        with engine_on(kind, Phases(), output) as engine:
            latest = next((e for e in reversed(evaluations) if e.device.key == engine.info.key), None)
            where = workload or _farthest_from_light(latest, loaded)
            with output.status(f"profiling {short(found.id)} at {where}"):
                counted = engine.profile(found, lookup.locator(op or found.op), where)
            fault = engine.unprofiled
        if counted is None:
            lookup.absent(f"no counters were read: {fault}", "`evolve doctor` shows whether ncu can be used here")
        store.append(counted)
    traits = latest.traits if latest else None
    access_bytes = max(traits.load_bytes, traits.store_bytes) if traits else WIDEST_ACCESS_BYTES
    if as_json:
        print_json(facts_of_profile(counted, access_bytes))
        return
    for part in profile_details(counted, access_bytes):
        output.print(part, soft_wrap=not hasattr(part, "columns"))


def _loaded(requested: str, kernel: Kernel, workload: str) -> "Op":
    """Load the kernel's op, or raise a UserError if the file defines another op or the op lacks the workload."""

    op = trial.load(requested or kernel.op)
    if op.name != kernel.op:
        raise UserError(
            f"{short(kernel.id)} is a kernel of {kernel.op}, not of {op.name}", "give the file of its own op"
        )
    keys = [one.key for one in op.gpu]
    if workload and workload not in keys:
        raise UserError(f"{op.name} has no workload `{workload}`", f"choose one of: {'; '.join(keys)}")
    return op


def _farthest_from_light(evaluation: Evaluation | None, op: "Op") -> str:
    """Return the timed workload with the lowest share of the speed of light, or the op's first if none was timed."""
    timed = {m.workload: m.share_of_light or 0.0 for m in (evaluation.measurements if evaluation else ())}
    known = [one.key for one in op.gpu if one.key in timed]
    return min(known, key=timed.__getitem__) if known else op.gpu[0].key
