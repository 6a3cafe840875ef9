"""Tests over many cases: one test runs all cases, and its failure names those that failed."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

Test = Callable[..., None]


def each(cases: Mapping[str, Any], *, quick: Collection[str] | None = None) -> Callable[[Test], Test]:
    """Turn a test of one case into one test of all named cases; a case that is a tuple contains several arguments.

    With `quick`, the quick run takes only the cases with these names, and the exhaustive run takes all others.
    """

    def decorated(test: Test) -> Test:
        def over_cases(names: tuple[str, ...]) -> None:
            failed = {name: error for name in names if (error := _failure(test, cases[name]))}
            if failed:
                lines = [f"{name}: {type(error).__name__}: {error}" for name, error in failed.items()]
                first = next(iter(failed.values()))
                raise AssertionError(f"{len(failed)} of {len(names)} cases failed\n" + "\n".join(lines)) from first

        over_cases.__name__, over_cases.__doc__, over_cases.__module__ = test.__name__, test.__doc__, test.__module__
        return pytest.mark.parametrize("names", _parts(cases, quick))(over_cases)

    return decorated


def _failure(test: Test, case: Any) -> Exception | None:
    try:
        test(*case) if isinstance(case, tuple) else test(case)
    except Exception as error:  # noqa: BLE001 - reported together with the failures of the other cases
        return error
    return None


def _parts(cases: Mapping[str, Any], quick: Collection[str] | None) -> list[Any]:
    if not cases or not set(quick or ()) <= set(cases):
        raise ValueError(f"there are no cases, or none with these names: {sorted(set(quick or ()) - set(cases))}")
    if quick is None:
        return [pytest.param(tuple(cases), id="all")]
    rest = tuple(name for name in cases if name not in quick)
    return [pytest.param(tuple(quick), id="some"), pytest.param(rest, id="others", marks=pytest.mark.exhaustive)]


def sampled(names: Collection[Any], quick: Collection[Any]) -> list[Any]:
    """Return `pytest.mark.parametrize` parameters for all names; the quick run takes only those in `quick`."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.exhaustive]) for name in names]
