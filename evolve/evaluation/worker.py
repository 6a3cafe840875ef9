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
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from evolve.evaluation.messages import Message

PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluates kernels for an engine; not for use by hand.")
    parser.add_argument("--device", required=True)
    parser.add_argument("--parent", type=int, required=True)
    wished = parser.parse_args()
    _die_with(wished.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's business: it ends us
    with _reply_channel() as replies:
        # Imported only now: PyTorch takes seconds, in which the parent may already have died.
        from evolve.errors import UserError
        from evolve.evaluation.messages import Failed
        from reference_ops.catalog import CatalogError

        try:
            _serve(wished.device, replies)
        except UserError as error:
            _send(replies, Failed(str(error), error.hint))
        except CatalogError as error:
            _send(replies, Failed(str(error)))
        except Exception as error:  # noqa: BLE001 - not the kernel's fault, so no verdict: say it and end the run
            traceback.print_exc()
            _send(replies, Failed(f"the evaluation itself failed: {type(error).__name__}: {error}"))


def _serve(device_kind: str, replies: BinaryIO) -> None:
    import torch

    from archive import kernel as genome
    from archive.records import Outcome
    from evolve import wiring
    from evolve.evaluation.evaluate import Bench, evaluate
    from evolve.evaluation.messages import Done, Phase, Ready, decode_job
    from reference_ops import catalog

    torch.set_num_threads(1)
    device = wiring.device(device_kind)
    bench = Bench(device, lambda phase: _send(replies, Phase(phase)))
    _send(replies, Ready(device.info))
    for line in sys.stdin.buffer:
        text, op = decode_job(line)
        evaluation = evaluate(genome.parse(text), catalog.load(op), bench)
        leaving = device_kind == "cuda" and evaluation.outcome in (Outcome.CRASHED, Outcome.LAUNCH_ERROR)
        _send(replies, Done(evaluation, leaving))
        if leaving:
            os._exit(0)  # the CUDA context is poisoned: even an orderly exit could hang in it


def _reply_channel() -> BinaryIO:
    """The original standard output; whatever a kernel or a library prints goes to standard error instead."""
    channel = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return channel


def _send(replies: BinaryIO, message: "Message") -> None:
    from evolve.evaluation.messages import encode

    with contextlib.suppress(BrokenPipeError):
        replies.write(encode(message))


def _die_with(parent: int) -> None:
    """Leave no orphan behind, even when the engine is killed without a chance to say goodbye (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main()
