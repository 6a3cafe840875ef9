"""Choice of the engine, the proposer and the archive file. `devices/choose.py` chooses devices.

Modules are imported inside the functions, because most of them import torch, which takes seconds, and commands that
only read the archive need none of them.
"""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archive import ArchiveError
from archive.store import Store
from evolve.devices import choose
from evolve.devices.choose import Policy, policy_of
from evolve.errors import UserError
from reference_ops.listing import user_cache_dir

if TYPE_CHECKING:
    from archive.sqlite import SqliteStore
    from evolve.engines.local import LocalEngine
    from evolve.engines.ray_engine import RayEngine
    from evolve.request import Proposer

CORES_PER_CARD = 4  # for the processes that check and time kernels; compilers use the others
CORES_PER_PREPARER = 4  # the other cores compile and time kernels at the same time
DEFAULT_ARCHIVE = Path(".evolve/archive.db")
RESCUED = re.compile(r"; all its records are saved in (.+)$")
# The beginning of an error about a damaged archive.
DAMAGED = re.compile(r"(?:cannot open )?the archive (.+?)(?: is damaged| cannot be merged|: )")


def engine(kind: str, watch: Callable[[str, str], None] | None = None, gpus: str = "") -> "LocalEngine":
    """Return an engine with as many local worker processes as the device's policy and the CPU cores allow.

    `gpus` are the cards to use, as in `0,2` or `all`; by default the device's first.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _local(kind, watch, cores, choose.cards(kind, gpus))[0]


def node_engine(kind: str, watch: Callable[[str, str], None], cores: int) -> "tuple[LocalEngine, int]":
    """Return the engine of a node of a cluster, with a share of its cores, and the number of jobs that keep it busy."""
    return _local(kind, watch, cores, ("",))


def ray_engine(
    kind: str = "", watch: Callable[[str, str], None] | None = None, address: str = "", gpus: str = ""
) -> "RayEngine":
    """Return an engine on a Ray cluster, each of whose actors has an engine on its node.

    `gpus` are the types of GPUs to use, as in `H100,H200`.
    """
    from evolve.engines.ray_engine import RayEngine

    return RayEngine(kind, node_engine, watch, address or "auto", [name.strip() for name in gpus.split(",")])


def _local(
    kind: str, watch: Callable[[str, str], None] | None, cores: int, cards: Sequence[str]
) -> "tuple[LocalEngine, int]":
    """Return an engine, and the number of jobs that keep it busy: one more per worker than the worker can process."""
    from evolve.engines.local import LocalEngine

    policy = policy_of(kind)
    workers = workers_per_card(policy, len(cards), cores)
    compilers = compilers_beside(policy, len(cards), cores)
    preparers = min(policy.most_preparers, cores // CORES_PER_PREPARER)
    made = LocalEngine(kind, workers, watch, compilers=compilers, cards=cards, preparers=preparers)
    return made, (workers * len(cards) + compilers) + max(1, workers * len(cards))


def workers_per_card(policy: Policy, cards: int, cores: int) -> int:
    """Return how many processes check and time kernels on each card: two, or more if there are cores for them."""
    return max(1, min(policy.most_workers, cores, max(2, cores // (policy.cores_per_worker * cards))))


def compilers_beside(policy: Policy, cards: int, cores: int) -> int:
    """Return how many processes compile kernels ahead, beside the processes that check and time them on the cards."""
    reserved = min(max(2, cores // 4), CORES_PER_CARD * cards)
    return min(policy.most_compilers * cards, max(1, cores - reserved))


def proposer(
    requested: str = "",
    models: tuple[str, ...] = (),
    watch: Callable[[str, str], None] | None = None,
    *,
    tune: bool = True,
) -> "Proposer":
    """Return the requested proposer; by default `llm` if a model is named or a key or base URL is set, else `offline`.

    If `tune` is false, the knobs of the models' kernels are not tuned.
    """
    return with_tuner(language_models(requested, models, watch), tune=tune)


def language_models(
    requested: str = "", models: tuple[str, ...] = (), watch: Callable[[str, str], None] | None = None
) -> "Proposer | None":
    """Return the proposer that asks the language models of `proposer`, or None for the offline one.

    PyTorch is not imported.

    `watch` is called with a key and the reason when a question to a model waits for its server, and with an empty
    reason afterwards.
    """
    if not _asks_models(requested, models):
        return None
    from evolve.proposers.llm.endpoint import unwatched
    from evolve.proposers.llm.proposer import from_environment

    return from_environment(models, watch=watch or unwatched)


def check_models(requested: str = "", models: tuple[str, ...] = ()) -> None:
    """Raise a UserError if `language_models` would, except for faults of a server, which is not contacted."""
    if _asks_models(requested, models):
        from evolve.proposers.llm.models import usable_models

        usable_models(models)


def _asks_models(requested: str, models: tuple[str, ...]) -> bool:
    """Return whether a run asks language models, or raise a UserError if there is no such proposer."""
    if requested not in ("", "offline", "llm"):
        raise UserError(f"there is no proposer `{requested}`", "choose offline or llm")
    reachable = bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))
    return requested != "offline" and bool(reachable or requested or models)


def with_tuner(models: "Proposer | None", *, tune: bool = True) -> "Proposer":
    """Return the proposer that asks these models and tunes their kernels, or the offline one if there are none."""
    from evolve.proposers.tuner.proposer import FinishingProposer, OfflineProposer

    if models is None:
        return OfflineProposer()
    return FinishingProposer(models, OfflineProposer()) if tune else models


def replaying(store: Store, run: str, *, tune: bool = True) -> "Proposer":
    """Return a proposer that replays a recorded run's answers from the archive, without a key or a network."""
    from evolve.proposers.llm import replay
    from evolve.proposers.llm.proposer import LlmProposer

    exchanges = replay.recorded(store, run)
    answering = replay.Recorded(run, exchanges)
    models = LlmProposer(replay.models(exchanges), answering, answering.in_recorded_order)
    return replay.AsManyProposals(with_tuner(models, tune=tune), [replay.number_of_proposals(store, run)])


def archive_path(requested: Path | None) -> Path:
    return requested or Path(os.environ.get("EVOLVE_ARCHIVE") or DEFAULT_ARCHIVE)


def archive(requested: Path | None, *, read_only: bool = False) -> "SqliteStore":
    """Return the archive, including the shipped kernels and measurements.

    If nothing has been archived yet, a reader gets an archive in memory, unless --archive names a file.
    """
    from archive import seeds

    path = archive_path(requested)
    named = requested is not None and str(requested) != os.environ.get("EVOLVE_ARCHIVE")
    if read_only and not named and not path.exists():
        return _shipped_alone()
    try:
        return seeds.opened(path, read_only=read_only)
    except ArchiveError as error:
        missing = "`evolve run softmax` creates one; --archive or EVOLVE_ARCHIVE names another" if read_only else ""
        raise UserError(str(error), archive_hint(error, missing)) from error


def readable_archive(requested: Path | None) -> "SqliteStore":
    """Return the archive opened read-only, or one in memory if there is none."""
    return archive(requested, read_only=True) if archive_path(requested).exists() else _shipped_alone()


def _shipped_alone() -> "SqliteStore":
    from archive import seeds

    return seeds.shipped_alone(user_cache_dir() / "shipped")


def archive_hint(error: ArchiveError, otherwise: str) -> str:
    """Return a hint on an archive that cannot be used."""
    if saved := RESCUED.search(str(error)):
        copy = shlex.quote(saved[1])
        return (
            f"move {copy} back, or merge it into another archive with `evolve merge {copy}`; then give the same "
            f"command again"
        )
    if not any(word in str(error) for word in ("is damaged", "malformed")):
        return otherwise
    named = DAMAGED.match(str(error))
    given = f" --archive {shlex.quote(named[1])}" if named and Path(named[1]) != DEFAULT_ARCHIVE else ""
    return f"`evolve recover{given}` copies all that can still be read into a new archive"
