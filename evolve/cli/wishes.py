"""What a run was asked to do, as it is typed and as the archive keeps it: a run that goes on must know it again."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from archive.proposals import Run
from evolve.errors import UserError

NAMED = {"--device": "device", "--proposer": "proposer", "--model": "models", "--replay": "replay"}
FLAGS = {"--fresh": "fresh", "--no-tune": "no_tune", "--no-seeds": "no_seeds"}


@dataclass(frozen=True)
class Wishes:
    """Everything but the ops and the budget. What is empty was not typed."""

    device: str = ""
    proposer: str = ""
    models: tuple[str, ...] = ()
    replay: str = ""
    fresh: bool = False
    no_tune: bool = False
    no_seeds: bool = False
    strategy: str = ""
    seed: int | None = None

    def options(self) -> list[str]:
        """As they would be typed; strategy and seed have their own places in a Run."""
        from evolve.proposers.llm.model_words import without_secrets

        words: list[str] = []
        for option, name in NAMED.items():
            value = getattr(self, name)
            given = [without_secrets(one) for one in value] if name == "models" else [value]
            words += [word for one in given if one for word in (option, one)]
        return words + [option for option, name in FLAGS.items() if getattr(self, name)]


def recorded(run: Run) -> Wishes:
    """What the archive says a run was started with."""
    words = list(run.words[1:])
    values: dict[str, list[str]] = {name: [] for name in NAMED.values()}
    flags = {}
    while words:
        option = words.pop(0)
        if option in FLAGS:
            flags[FLAGS[option]] = True
        elif option in NAMED and words:
            values[NAMED[option]].append(words.pop(0))
    single = {name: (found[-1] if found else "") for name, found in values.items() if name != "models"}
    single["device"] = run.device.split()[0]
    return Wishes(**single, **flags, models=tuple(values["models"]), strategy=run.strategy, seed=run.seed)  # type: ignore[arg-type]


def locator(run: Run) -> str:
    """How its op is found: the first word it was started with, or its name."""
    return run.words[0] if run.words else run.op


def check_same(run: Run, typed: Wishes, kept: Sequence[str] = ()) -> None:
    """A run goes on as it began: what is typed again must not differ; the fields named in `kept` are not compared."""
    before = recorded(run)
    for field in fields(Wishes):
        value = getattr(typed, field.name)
        if value not in ("", (), None, False) and value != getattr(before, field.name) and field.name not in kept:
            option = "--" + {"models": "model"}.get(field.name, field.name).replace("_", "-")
            raise UserError(
                f"run {run.id} was started with another {option}", f"leave {option} out, or start a new run"
            )
