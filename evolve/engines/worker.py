"""Worker process: reads jobs from its channel, compiles or evaluates their kernels, and sends the verdicts.

A kernel may kill or hang the process. The engine notices this, gives the verdict itself and starts another worker.
"""

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from archive import kernel as genome
from archive.kernel import Bound, Kernel
from archive.plan import PlanError
from archive.records import DeviceInfo, Evaluation, Outcome, content_id
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.devices.device import CompileResult, Device, RejectedError
from evolve.devices.device_errors import gpu_fault, out_of_memory
from evolve.devices.turns import FOLDER, Turns, folder_of_card
from evolve.engines import sandbox
from evolve.engines.messages import (
    WAITING,
    Assignment,
    Contends,
    Done,
    Expected,
    Failed,
    Fork,
    Lacking,
    Message,
    Phase,
    Precompiled,
    Ready,
    Role,
    decode,
    encode,
)
from evolve.engines.sandbox import Bounds
from evolve.errors import UserError
from evolve.evaluation import baselines
from evolve.evaluation.baselines import Ending, compile_ahead
from evolve.evaluation.buffers import bytes_held
from evolve.evaluation.compiling import Compilation, precompile
from evolve.evaluation.evaluate import evaluate, glance, warm_up
from evolve.evaluation.evaluator import Evaluator
from evolve.evaluation.requests import (
    PreparationRequest,
    Prepared,
    ProfileRequest,
    ProfileResult,
    TimingRequest,
    TimingResult,
)
from evolve.evaluation.time_pytorch import profiled, time_pytorch
from reference_ops import catalog
from reference_ops.catalog import CatalogError
from reference_ops.listing import user_cache_dir
from reference_ops.op import Op

ERROR_CHARACTERS = 300
# Shares of the device's memory. A workload up to the first share is evaluated while other workers use the device.
# Memory up to the second share is kept after an evaluation.
SHARED_MEMORY, KEPT_MEMORY = 1 / 4, 1 / 16
WAITS_FOR_MEMORY = (2.0, 8.0, 20.0)  # seconds
WAITS_FOR_OTHERS = (60.0, 120.0)  # longer waits in seconds, while other processes hold most of the memory
Send = Callable[[Message], None]
V = TypeVar("V")  # type of a verdict, or None
Request = Assignment | ProfileRequest | TimingRequest | PreparationRequest
SHARED_COMPILATION, TICK = 10.0, 0.003  # seconds to wait for another worker that compiles, and between two polls
NICE = 10  # niceness of a process that compiles ahead, so that it does not slow processes that measure


def serve(device_kind: str, fork: Fork, channel: socket.socket, project: Path) -> None:
    """Handle requests until the engine closes the channel. `project` is the user's working folder."""
    torch.set_num_threads(1)

    def send(message: Message) -> None:
        with contextlib.suppress(OSError):  # the engine has ended, and the fork server ends this process
            channel.sendall(encode(message))

    try:
        if fork.role is Role.COMPILER:
            _compile(fork, _requests(channel), project, send)
        elif fork.role is Role.PREPARER:
            _prepare(device_kind, fork, _requests(channel), project, send)
        else:
            _evaluate(device_kind, fork, _requests(channel), project, send)
    except (UserError, CatalogError) as error:
        send(Failed(str(error), getattr(error, "hint", "")))
    except Exception as error:  # noqa: BLE001 - not the kernel's fault, so there is no verdict: the engine ends the run
        traceback.print_exc()
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}, line {at.lineno}"
        text = f"the evaluation itself failed: {type(error).__name__}: {error} ({where})"
        send(Failed(text, unforeseen=True))


def _compile(fork: Fork, requests: Iterator[Request], project: Path, send: Send) -> None:
    cubins = Path(fork.cubins)
    sandbox.enter(Bounds((Path(fork.folder), cubins), (project,), fork.memory_bytes))
    send(Ready(None))
    for request in requests:
        assert isinstance(request, Assignment)  # noqa: S101 - other requests go to evaluators
        info = request.device
        assert info  # noqa: S101 - an assignment to a compiler names the device to compile for
        if request.helps:
            _help(request, _Shared(cubins, request, choose.compiler_for(info, cubins)), info)
            send(Prepared())
            continue
        verdict = _compiled(request, _Shared(cubins, request, choose.compiler_for(info, cubins)), info, send)
        send(Precompiled(verdict.traits) if verdict.passed else Done(verdict))


def _compiled(request: Assignment, shared: "_Shared", info: DeviceInfo, send: Send) -> Evaluation:
    kernel, op = _loaded(request)

    def compile_bound(bound: Bound) -> CompileResult:
        send(Phase("compile"))  # each workload has its own deadline
        return shared.compile(bound)

    try:
        return precompile(
            kernel, op, info, compile_bound, request.shapes_seed, confirm=request.confirm, setting=request.setting
        )
    except MemoryError:
        return _verdict(kernel, op, info, Outcome.COMPILE_ERROR, "compiling needs too much memory")


def _help(request: Assignment, shared: "_Shared", info: DeviceInfo) -> None:
    """Compile the programs that no other worker has begun. The worker that has the kernel reports its faults."""
    kernel, op = _loaded(request)
    with contextlib.suppress(RejectedError, PlanError, MemoryError):
        compilation = Compilation(kernel, op, info, shared.compile_if_left)
        if request.setting:
            compilation.as_declared()
        else:
            compilation.everything(request.shapes_seed, confirm=request.confirm)


@dataclass(frozen=True)
class _Shared:
    """The compilation of a kernel by several workers: each program is compiled by the worker that begins it first."""

    cubins: Path
    request: Assignment
    compile_bound: Callable[[Bound], CompileResult]

    def compile(self, bound: Bound) -> CompileResult:
        """Compile for one workload. If another worker has begun to compile for it, wait for that worker's file."""
        waiting_until = time.monotonic() + SHARED_COMPILATION
        while self._begun_elsewhere(bound) and time.monotonic() < waiting_until:
            if self._mark(bound, "ended").exists():
                break
            time.sleep(TICK)
        return self._compile(bound)

    def compile_if_left(self, bound: Bound) -> CompileResult | None:
        return None if self._begun_elsewhere(bound) else self._compile(bound)

    def _compile(self, bound: Bound) -> CompileResult:
        try:
            return self.compile_bound(bound)
        finally:
            self._mark(bound, "ended").touch()

    def _begun_elsewhere(self, bound: Bound) -> bool:
        try:
            self._mark(bound, "begun").touch(exist_ok=False)
        except FileExistsError:
            return True
        return False

    def _mark(self, bound: Bound, name: str) -> Path:
        job = [bound.kernel.id, bound.constants, bound.types, self.request.shapes_seed, self.request.setting]
        return self.cubins / f"{content_id(job)}.{name}"


def _prepare(device_kind: str, fork: Fork, requests: Iterator[Request], project: Path, send: Send) -> None:
    os.nice(NICE)
    _use_card(device_kind, fork)
    device = choose.make(device_kind, fork.device, Path(fork.cubins))
    sandbox.enter(_bounds(device_kind, fork, project))
    send(Ready(None))
    cache = baselines.cache(fork.card)
    for request in requests:
        assert isinstance(request, PreparationRequest)  # noqa: S101 - other requests go to evaluators
        send(Phase("prepare"))
        ending = None
        with contextlib.suppress(CatalogError):  # the evaluator, which also loads the op, reports the fault
            for workload in (op := catalog.load(request.op)).workloads(device_kind):
                if workload.key == request.workload and not cache.find(op, workload, device.info):
                    ending = compile_ahead(request.baseline, op, workload, device.torch_device)
        send(Prepared(ending is Ending.TOO_LONG))


def _use_card(device_kind: str, fork: Fork) -> None:
    if fork.card and policy_of(device_kind).card_variable:
        os.environ[policy_of(device_kind).card_variable] = fork.card


def _evaluate(device_kind: str, fork: Fork, requests: Iterator[Request], project: Path, send: Send) -> None:
    _use_card(device_kind, fork)
    device = choose.make(device_kind, fork.device, Path(fork.cubins))
    turns = _turns(
        device_kind, folder_of_card(device.tools.card, Path(fork.folder).parent / f"turns-{fork.card}"), send
    )
    info = _measured(device, turns)
    sandbox.enter(_bounds(device_kind, fork, project))
    send(Ready(info))

    def watch(phase: str) -> None:
        if turns:
            turns.take(phase)
        send(Phase(phase))

    evaluator = Evaluator(device, watch, baselines.cache(fork.card))
    evaluator.defers = evaluator.uses_torch_compile and not baselines.switched_off()
    if turns:  # the engine has no kernel yet, or a compiler has it
        turns.take("check")
        warm_up(evaluator)
        turns.leave()
    for request in _one_at_a_time(requests, turns, evaluator):
        if isinstance(request, ProfileRequest):
            send(_profile(request, evaluator))
            continue
        if isinstance(request, TimingRequest):
            send(_time_pytorch(request, evaluator))
            continue
        assert isinstance(request, Assignment)  # noqa: S101 - preparations go to preparers
        if evaluator.defers and not request.confirm:
            _report_lacking(catalog.load(request.op), evaluator, send)
        if verdict := _judge(request, evaluator, turns):
            tainted = verdict.outcome in policy_of(device_kind).replaced_after
            send(Done(verdict, tainted, tuple(evaluator.lacking) if verdict.passed else ()))
        else:
            send(Contends())


def _judge(request: Assignment, evaluator: Evaluator, turns: Turns | None) -> Evaluation | None:
    """Return the verdict on the request's kernel, or None if it is a setting of knobs that may be fast."""
    kernel, op = _loaded(request)
    bars = dict(request.bars)
    in_full = partial(
        evaluate, kernel, op, evaluator,
        shapes_seed=request.shapes_seed, bars=bars, confirm=request.confirm, known=request.traits,
    )  # fmt: skip
    evaluated = partial(glance, kernel, op, evaluator, bars=bars) if request.setting else in_full
    try:
        return _with_memory(evaluated, evaluator, turns)
    except (MemoryError, RuntimeError) as error:
        if turns and out_of_memory(error):
            _require_memory(evaluator)
        log = _memory_message(error) if out_of_memory(error) else gpu_fault()
        if not log:
            raise
        notes = getattr(error, "__notes__", ())
        return _verdict(kernel, op, evaluator.device.info, Outcome.CRASHED, " ".join((log, *notes)))


def _measured(device: Device, turns: Turns | None) -> DeviceInfo:
    """Return the device with its rates, which are measured while no other worker uses it."""
    if turns is None:
        return device.info
    turns.take("baseline")
    info = device.info
    turns.leave()
    return info


def _with_memory(evaluated: Callable[[], V], evaluator: Evaluator, turns: Turns | None) -> V:
    """Return an evaluation. If the memory that workers share is exhausted, wait for the others and try again alone."""
    for seconds in _waits(evaluator.device) if turns else ():
        try:
            return evaluated()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        evaluator.arena.release()
        assert turns  # noqa: S101 - see above
        turns.sleep(seconds)
        turns.always_alone = True
    return evaluated()


def _waits(device: Device) -> Iterator[float]:
    """Yield the time to wait after each evaluation that lacks memory and has released what it had."""
    yield from WAITS_FOR_MEMORY
    for seconds in WAITS_FOR_OTHERS:
        if not _scarce(device):
            return
        yield seconds


def _require_memory(evaluator: Evaluator) -> None:
    """Raise an error if other processes hold most of the device's memory, because then the kernel is not at fault."""
    evaluator.arena.release()
    tools = evaluator.device.tools
    if tools.free_bytes and _scarce(evaluator.device):
        free, total = tools.free_bytes() / 2**30, tools.memory_bytes / 2**30
        raise RuntimeError(
            f"other processes hold the GPU's memory, and {free:.1f} of {total:.0f} GiB are free: "
            "wait until they have ended, or use fewer runs at once"
        )


def _report_lacking(op: Op, evaluator: Evaluator, send: Send) -> None:
    workloads = op.workloads(evaluator.device.info.kind)
    if lacking := tuple(one.key for one in workloads if not evaluator.known(op, one)):
        send(Lacking(lacking))


def _turns(device_kind: str, folder: Path, send: Send) -> Turns | None:
    """Return turns on a device whose times would be disturbed by other workers."""
    if not policy_of(device_kind).times_are_gpu_times:
        return None
    os.environ[FOLDER] = str(folder)
    return Turns(folder, torch.accelerator.synchronize, lambda: send(Phase(WAITING)))


def _one_at_a_time(requests: Iterator[Request], turns: Turns | None, evaluator: Evaluator) -> Iterator[Request]:
    """Yield the requests. After each one, release the turn, and the memory if other processes may need it."""
    if turns is None:
        yield from requests
        return
    device = evaluator.device
    for request in requests:
        op = catalog.load(request.op)
        most = max((bytes_held(op, workload) for workload in op.workloads(device.info.kind)), default=0)
        turns.always_alone = most > device.tools.memory_bytes * SHARED_MEMORY
        yield request
        if most > device.tools.memory_bytes * KEPT_MEMORY or _scarce(device):
            evaluator.arena.release()
        turns.leave()


def _scarce(device: Device) -> bool:
    """Return whether less than half of the device's memory is free, as when several runs share it."""
    free = device.tools.free_bytes
    return free is not None and free() < device.tools.memory_bytes / 2


def _profile(request: ProfileRequest, evaluator: Evaluator) -> ProfileResult:
    kernel, op = _loaded(request)
    try:
        return profiled(kernel, op, request.workload, evaluator.device, evaluator.watch)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return ProfileResult(None, _memory_message(error))


def _time_pytorch(request: TimingRequest, evaluator: Evaluator) -> TimingResult:
    evaluator.watch("baseline")  # the phase includes loading the op, which may import the whole catalog
    return time_pytorch(catalog.load(request.op), request, evaluator)


def _memory_message(error: Exception) -> str:
    return f"there is not enough memory: {str(error)[:ERROR_CHARACTERS]}"


def _bounds(device_kind: str, fork: Fork, project: Path) -> Bounds:
    """Return the paths and devices that an evaluator may access.

    Kernels that are native code could do harm, so their evaluator has the fewest rights.
    """
    caches = (user_cache_dir(), Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    for cache in caches:  # importing torch._dynamo creates PyTorch's folder, which a confined worker cannot do
        with contextlib.suppress(OSError):  # without the folder, PyTorch caches nothing
            cache.mkdir(parents=True, exist_ok=True)
    if policy_of(device_kind).kernels_are_native_code:
        return Bounds((Path(fork.folder),), (project,), fork.memory_bytes)
    return Bounds((Path(fork.folder), Path(fork.cubins), *caches), (project,), fork.memory_bytes, gpu=True)


def _verdict(kernel: Kernel, op: Op, info: DeviceInfo, outcome: Outcome, log: str) -> Evaluation:
    return Evaluation(kernel.id, op.name, info, outcome, log, created=time.time())


def _loaded(request: Assignment | ProfileRequest) -> tuple[Kernel, Op]:
    return genome.parse(request.kernel), catalog.load(request.op)


def _requests(channel: socket.socket) -> Iterator[Request]:
    with channel.makefile("rb") as lines:
        for line in lines:
            message = decode(line)
            if isinstance(message, Expected):
                with contextlib.suppress(Exception):  # a fault is reported with the first job
                    catalog.load(message.op)
                continue
            assert isinstance(message, Request)  # noqa: S101 - nothing else is sent to workers
            yield message
