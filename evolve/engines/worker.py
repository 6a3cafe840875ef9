"""What a worker does from its first breath to its last: it takes kernels from its channel and answers with verdicts.

A kernel may kill it or hang it; the engine notices, names what happened and has another one forked.
"""

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from archive import kernel as genome
from archive.binding import Bound
from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome
from evolve import wiring
from evolve.devices.device import Machined
from evolve.engines import sandbox
from evolve.engines.messages import (
    Assignment,
    Done,
    Failed,
    Fork,
    Message,
    Phase,
    Precompiled,
    ProfileRequest,
    ProfileResult,
    Ready,
    Role,
    TimingRequest,
    TimingResult,
    decode,
    encode,
)
from evolve.engines.sandbox import Bounds
from evolve.errors import UserError
from evolve.evaluation.caches import evolve_cache_dir
from evolve.evaluation.compiling import precompile
from evolve.evaluation.evaluate import Evaluator, evaluate
from evolve.evaluation.profile import profiled
from evolve.evaluation.time_pytorch import time_pytorch
from evolve.evaluation.trouble import gpu_fault, out_of_memory
from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.op import Op

# After these the device may be of no use to the process, or its memory no longer what it was.
LASTING = {
    "cuda": (Outcome.CRASHED, Outcome.LAUNCH_ERROR),
    "emulated": (Outcome.CRASHED, Outcome.LAUNCH_ERROR, Outcome.OUT_OF_BOUNDS),
}
ERROR_CHARACTERS = 300
Answer = Callable[[Message], None]
Duty = Assignment | ProfileRequest | TimingRequest


def serve(device_kind: str, fork: Fork, channel: socket.socket, project: Path) -> None:
    """Until the engine closes its end of the channel. `project` is where the user works."""
    torch.set_num_threads(1)

    def answer(message: Message) -> None:
        with contextlib.suppress(OSError):  # an engine that is gone ends us by itself
            channel.sendall(encode(message))

    try:
        if fork.role is Role.COMPILER:
            _compile(fork, _assignments(channel), project, answer)
        else:
            _evaluate(device_kind, fork, _assignments(channel), project, answer)
    except UserError as error:
        answer(Failed(str(error), error.hint))
    except CatalogError as error:
        answer(Failed(str(error)))
    except Exception as error:  # noqa: BLE001 - not the kernel's fault, so no verdict: say it and end the run
        traceback.print_exc()
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}, line {at.lineno}"
        text = f"the evaluation itself failed: {type(error).__name__}: {error} ({where})"
        answer(Failed(text, unforeseen=True))


def _compile(fork: Fork, assignments: Iterator[Duty], project: Path, answer: Answer) -> None:
    sandbox.enter(Bounds((Path(fork.folder), Path(fork.cubins)), (project,), fork.memory_bytes))
    answer(Ready(None))
    for assignment in assignments:
        assert isinstance(assignment, Assignment)  # noqa: S101 - only evaluators are asked anything else
        info = assignment.device
        assert info  # noqa: S101 - compilers are told what to compile for
        kernel, op = _loaded(assignment)
        compiler = wiring.compiler(info, Path(fork.cubins))
        compile_bound = partial(_announced, compiler, answer)
        try:
            verdict = precompile(kernel, op, info, compile_bound, assignment.shapes_seed, confirm=assignment.confirm)
        except MemoryError:
            verdict = _verdict(kernel, op, info, Outcome.COMPILE_ERROR, "compiling needs too much memory")
        answer(Precompiled(verdict.traits) if verdict.passed else Done(verdict))


def _announced(compile_bound: Callable[[Bound], Machined], answer: Answer, bound: Bound) -> Machined:
    """Every workload has the deadline for itself."""
    answer(Phase("compile"))
    return compile_bound(bound)


def _evaluate(device_kind: str, fork: Fork, assignments: Iterator[Duty], project: Path, answer: Answer) -> None:
    device = wiring.device(device_kind, fork.device, Path(fork.cubins))
    info = device.info
    sandbox.enter(_bounds(device_kind, fork, project))
    answer(Ready(info))
    bench = Evaluator(device, lambda phase: answer(Phase(phase)))
    for assignment in assignments:
        if isinstance(assignment, ProfileRequest):
            answer(_counted(assignment, bench))
            continue
        if isinstance(assignment, TimingRequest):
            answer(_gauged(assignment, bench))
            continue
        kernel, op = _loaded(assignment)
        bars, seed = dict(assignment.bars), assignment.shapes_seed
        try:
            verdict = evaluate(kernel, op, bench, shapes_seed=seed, bars=bars, confirm=assignment.confirm)
        except (MemoryError, RuntimeError) as error:
            log = _short_of_memory(error) if out_of_memory(error) else gpu_fault()
            if not log:
                raise
            verdict = _verdict(kernel, op, info, Outcome.CRASHED, log)
        answer(Done(verdict, leaving=verdict.outcome in LASTING[device_kind]))


def _counted(count: ProfileRequest, bench: Evaluator) -> ProfileResult:
    kernel, op = _loaded(count)
    try:
        return profiled(kernel, op, count.workload, bench.device, bench.watch)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return ProfileResult(None, _short_of_memory(error))


def _short_of_memory(error: Exception) -> str:
    return f"there is not enough memory: {str(error)[:ERROR_CHARACTERS]}"


def _gauged(wanted: TimingRequest, bench: Evaluator) -> TimingResult:
    bench.watch("baseline")  # which finding the op counts towards: the whole catalog may have to be imported
    return time_pytorch(catalog.load(wanted.op), wanted, bench)


def _bounds(device_kind: str, fork: Fork, project: Path) -> Bounds:
    """An emulated kernel could do harm as the native code that it is, so it gets hardly anything."""
    if device_kind != "cuda":
        return Bounds((Path(fork.folder),), (project,), fork.memory_bytes)
    caches = (evolve_cache_dir(), Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    for cache in caches:
        with contextlib.suppress(OSError):  # then nothing is cached
            cache.mkdir(parents=True, exist_ok=True)
    return Bounds((Path(fork.folder), Path(fork.cubins), *caches), (project,), gpu=True)


def _verdict(kernel: Kernel, op: Op, info: DeviceInfo, outcome: Outcome, log: str) -> Evaluation:
    return Evaluation(kernel.id, op.name, info, outcome, log, created=time.time())


def _loaded(assignment: Assignment | ProfileRequest) -> tuple[Kernel, Op]:
    return genome.parse(assignment.kernel), catalog.load(assignment.op)


def _assignments(channel: socket.socket) -> Iterator[Duty]:
    with channel.makefile("rb") as lines:
        for line in lines:
            message = decode(line)
            assert isinstance(message, Duty)  # noqa: S101 - nothing else is sent to workers
            yield message
