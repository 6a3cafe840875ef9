"""The budget as it is typed: checked, completed, and put into words again."""

from dataclasses import asdict, replace

from archive.proposals import Budget
from evolve.errors import UserError

OFFLINE_MINUTES, MODEL_MINUTES, MOST_MINUTES = 2.0, 10.0, 100_000.0
MOST, MOST_SHOWN = 1e15, 24  # of anything, and the digits of it that are repeated
OFFLINE = "offline"
MINUTES, EVALS, TOKENS, USD, UNTIL_SOL = "--minutes", "--evals", "--tokens", "--usd", "--until-sol"


def typed(
    minutes: float | None, evals: int | None, tokens: int | None, usd: float | None, until_sol: float | None
) -> Budget:
    """What was typed, as a budget, or a UserError that says what is wrong with it."""
    for option, value, such_as in (
        (MINUTES, minutes, "5 or 0.5"),
        (EVALS, evals, "200"),
        (TOKENS, tokens, "500000"),
        (USD, usd, "2.50"),
        (UNTIL_SOL, until_sol, "0.95"),
    ):
        if value is not None and not 0 < value < MOST:
            said = f"{value:g}" if isinstance(value, float) else str(value)[:MOST_SHOWN]
            raise UserError(f"{option} {said} is nothing that could be spent", f"give {option} such as {such_as}")
    if minutes and minutes > MOST_MINUTES:
        raise UserError(
            f"{MINUTES} {minutes:g} is more than {MOST_MINUTES:g}", "leave it out where another limit holds"
        )
    if until_sol and until_sol > 1:
        raise UserError(
            f"{UNTIL_SOL} {until_sol:g} is faster than the speed of light", f"give a share such as {UNTIL_SOL} 0.95"
        )
    return Budget(evals, tokens, usd, None if minutes is None else 60 * minutes, until_sol)


def raised(budget: Budget, given: Budget) -> Budget:
    """The budget of a run that goes on: what is given with it replaces what it had."""
    return replace(budget, **{name: value for name, value in asdict(given).items() if value is not None})


def completed(budget: Budget, proposer: str) -> Budget:
    """With the usual time, unless a limit is given that this proposer will reach; a run always has an end."""
    offline = proposer == OFFLINE
    bounded = budget.evals, budget.seconds, None if offline else budget.tokens, None if offline else budget.usd
    if any(limit is not None for limit in bounded):
        return budget
    return replace(budget, seconds=60 * (OFFLINE_MINUTES if offline else MODEL_MINUTES))


def options(budget: Budget) -> list[str]:
    """As they would be typed."""
    given = {
        MINUTES: None if budget.seconds is None else f"{budget.seconds / 60:g}",
        EVALS: budget.evals,
        TOKENS: budget.tokens,
        USD: None if budget.usd is None else f"{budget.usd:g}",
        UNTIL_SOL: None if budget.until_light is None else f"{budget.until_light:g}",
    }
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]
