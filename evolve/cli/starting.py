"""What `run` and `evaluate` do first: find the device, start its workers, and say so."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from archive.proposals import Budget
from evolve import wiring
from evolve.cli import signals
from evolve.cli.limits import OFFLINE, TOKENS, USD
from evolve.report.progress import Phases

if TYPE_CHECKING:
    from evolve.engines.engine import Engine

NO_GPU = "no GPU found: running on the emulated device (CPU). Times are CPU times of an emulator."
EMULATED = "running on the emulated device (CPU), as asked. Times are CPU times of an emulator."


@contextlib.contextmanager
def engine_on(wished: str, phases: Phases, shown: Console) -> Iterator["Engine"]:
    """An engine whose device is ready, closed in the end whatever happens."""
    with shown.status("looking for a GPU"):
        kind = wiring.device_kind(wished)
    if kind != "cuda":
        shown.print(f"device    {EMULATED if wished else NO_GPU}", style="yellow")
    engine = wiring.engine(kind, phases.watch)
    try:
        with shown.status("starting the workers"):
            signals.check()
            info = engine.info
            signals.check()
        if kind == "cuda":
            shown.print(f"device    {info.name} ({info.arch}, {info.sms} multiprocessors)")
        yield engine
    finally:
        engine.close()


def say_proposer(name: str, budget: Budget, shown: Console) -> None:
    """Who proposes, and which limits will never be reached because nobody is paid."""
    if name != OFFLINE:
        shown.print(f"proposer  {name}")
        return
    configured = os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")
    why = "" if configured else "no OPENAI_API_KEY or OPENAI_BASE_URL: "
    shown.print(
        f"proposer  {why}the offline proposer varies the knobs of kernels at hand", soft_wrap=not shown.is_terminal
    )
    if moot := [option for option, limit in ((TOKENS, budget.tokens), (USD, budget.usd)) if limit is not None]:
        shown.print(f"budget    no model is asked, so {' and '.join(moot)} cannot end the run", style="yellow")
