"""What PyTorch takes for a workload, with no kernel beside it. No verdict: it says where a search has most to gain."""

import contextlib
import statistics
import time

import torch

from archive.records import Standard
from evolve.engines.messages import TimingRequest, TimingResult
from evolve.errors import UserError
from evolve.evaluation import baselines
from evolve.evaluation.baselines import EAGER, SAMPLES, SETS, Baselines
from evolve.evaluation.evaluate import Evaluator
from evolve.evaluation.timing import floor_us
from evolve.evaluation.trouble import gpu_fault, out_of_memory
from reference_ops.op import Op, Workload

FAULT_CHARACTERS = 200


def time_pytorch(op: Op, wanted: TimingRequest, bench: Evaluator) -> TimingResult:
    """The times are kept for evaluations to come, which need the same. Whatever PyTorch cannot do is in the answer."""
    info = bench.device.info
    workload = next((one for one in op.workloads(info.kind) if one.key == wanted.workload), None)
    if workload is None:
        return TimingResult(None, f"{op.name} has no workload `{wanted.workload}` on this device")
    try:
        known = _eager_alone(op, workload, bench) if wanted.eager_alone else _timed(op, workload, bench, wanted)
    except UserError as error:  # a workload on which wrong results would not show
        return TimingResult(None, str(error), leaving=bool(gpu_fault()))
    except Exception as error:  # noqa: BLE001 - whatever PyTorch may raise: the other workloads are still of interest
        if out_of_memory(error):
            return TimingResult(None, "does not fit into the memory there is")
        # Nobody knows what PyTorch leaves behind when it fails on a GPU: the next workload gets a fresh process.
        return TimingResult(None, f"PyTorch fails: {type(error).__name__}: {error}"[:FAULT_CHARACTERS], leaving=True)
    finally:
        if info.kind == "cuda":  # an emulator's worker compiles nothing, and may not even import the compiler
            _forget()
    return TimingResult(
        Standard(
            op.name,
            workload.key,
            info,
            known.eager_us,
            known.compile_us,
            known.autotune_us,
            floor_us(bench.device, op, workload),
            round(time.time(), 3),
        )
    )


def _forget() -> None:
    """Leave the next workload all of the memory, and a compiler that has not given up on functions seen too often.

    Ops that are made alike share their code, and from a few hundred compilations of one on it would run as it is.
    """
    with contextlib.suppress(RuntimeError):  # of a GPU that is spoilt, which the answer says
        torch._dynamo.reset()  # noqa: SLF001 - its public name
        torch.cuda.empty_cache()


def _timed(op: Op, workload: Workload, bench: Evaluator, wanted: TimingRequest) -> Baselines:
    info, kept = bench.device.info, bench.device.info.kind == "cuda"
    before = (op.name, workload.key) in bench.timed or (kept and bench.shelf.find(op, workload, info) is not None)
    if not (wanted.again and before):  # what was timed before was also found fit to be judged
        return bench.baselines_for(op, workload)
    bench.watch("baseline")
    return bench.time_baselines(op, workload)


def _eager_alone(op: Op, workload: Workload, bench: Evaluator) -> Baselines:
    """Not kept for evaluations: next time torch.compile may find the time, and what it compiled so far is cached."""
    bench.watch("baseline")
    device = bench.device
    call = baselines.prepared(EAGER, op, workload, device)
    assert call  # noqa: S101 - eager needs no preparing
    sets = [op.inputs_at(workload, seed, device.torch_device) for seed in range(SETS)]
    times = [device.time(lambda: call(sets[sample % SETS])) for sample in range(SAMPLES + 1)]  # noqa: B023
    return Baselines(statistics.median(times[1:]))  # the first warms up
