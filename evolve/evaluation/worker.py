"""The process that evaluates: it holds one device, takes kernels on its standard input and answers with verdicts.

A kernel may kill it or hang it; the engine that started it notices, names what happened and starts another.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import traceback
from typing import BinaryIO

from archive import kernel as genome
from archive.records import Outcome
from evolve import wiring
from evolve.errors import UserError
from evolve.evaluation.evaluate import Bench, evaluate
from evolve.evaluation.messages import Done, Failed, Message, Phase, Ready, decode_job, encode
from reference_ops import catalog

PR_SET_PDEATHSIG = 1
AFTERWARDS_UNSURE = (Outcome.CRASHED, Outcome.LAUNCH_ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluates kernels for an engine; not for use by hand.")
    parser.add_argument("--device", required=True)
    device_kind = parser.parse_args().device
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's business: it closes our input
    with _reply_channel() as replies:
        try:
            _serve(device_kind, replies)
        except (UserError, catalog.CatalogError) as error:
            _send(replies, Failed(str(error)))
        except Exception as error:  # noqa: BLE001 - not the kernel's fault, so no verdict: say it and end the run
            traceback.print_exc()
            _send(replies, Failed(f"the evaluation itself failed: {type(error).__name__}: {error}"))


def _serve(device_kind: str, replies: BinaryIO) -> None:
    import torch

    torch.set_num_threads(1)
    device = wiring.device(device_kind)
    bench = Bench(device, lambda phase: _send(replies, Phase(phase)))
    _send(replies, Ready(device.info))
    for line in sys.stdin.buffer:
        text, op = decode_job(line)
        evaluation = evaluate(genome.parse(text), catalog.load(op), bench)
        leaving = device_kind == "cuda" and evaluation.outcome in AFTERWARDS_UNSURE
        _send(replies, Done(evaluation, leaving))
        if leaving:
            os._exit(0)  # the CUDA context is poisoned: even an orderly exit could hang in it


def _reply_channel() -> BinaryIO:
    """The original standard output; whatever a kernel or a library prints goes to standard error instead."""
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return channel


def _send(replies: BinaryIO, message: Message) -> None:
    with contextlib.suppress(BrokenPipeError):
        replies.write(encode(message))


def _die_with_parent() -> None:
    """Leave no orphan behind, even when the engine is killed without a chance to say goodbye (Linux only)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    main()
