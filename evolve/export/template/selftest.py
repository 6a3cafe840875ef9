"""Tests of a package on the machine where it is installed: runs the checks, and prints what failed or was left out."""

import argparse
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch

from evolve.export.template.checks import OF_FUNCTIONS, OF_KERNELS, OPAQUE, LeftOutError, Setting, opaque_op
from evolve.export.template.functions import Functions

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"
CHECKS = (*OF_FUNCTIONS, *OF_KERNELS, OPAQUE)


@dataclass(frozen=True)
class Result:
    check: str
    subject: str
    outcome: str
    detail: str


def _tried(check: str, subject: str, run: Callable[[], str]) -> Result:
    try:
        return Result(check, subject, PASSED, run())
    except LeftOutError as reason:
        return Result(check, subject, LEFT_OUT, str(reason))
    except Exception as error:  # noqa: BLE001 - any error of a function is a failure to report
        return Result(check, subject, FAILED, f"{type(error).__name__}: {error}")


def results(
    functions: Functions, names: Sequence[str], setting: Setting, checks: Collection[str] = CHECKS
) -> Iterator[Result]:
    """Yield the result of these checks of functions and their kernels."""
    for check, of_function in OF_FUNCTIONS.items():
        if check in checks:
            for name in names:
                yield _tried(check, name, partial(of_function, functions[name], setting))
    primitives = dict(chain.from_iterable(functions[name].primitives.items() for name in names))
    for check, of_kernel in OF_KERNELS.items():
        if check in checks:
            for name, primitive in primitives.items():
                yield _tried(check, name, partial(of_kernel, primitive, setting))
    if OPAQUE in checks:
        for name, primitive in primitives.items():
            yield _tried(OPAQUE, name, partial(opaque_op, functions, primitive, setting))


def table(found: Sequence[Result]) -> str:
    """Return the number of outcomes of each check, what failed, and why checks were left out."""
    lines = [f"{'check':<20}{PASSED:>8}{FAILED:>8}{LEFT_OUT:>10}"]
    for check in dict.fromkeys(one.check for one in found):
        outcomes = [one.outcome for one in found if one.check == check]
        counts = [outcomes.count(outcome) for outcome in (PASSED, FAILED, LEFT_OUT)]
        lines.append(f"{check:<20}{counts[0]:>8}{counts[1]:>8}{counts[2]:>10}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.outcome == LEFT_OUT:
            reasons.setdefault((one.check, one.detail), []).append(one.subject)
    for (check, reason), subjects in reasons.items():
        more = f" and {len(subjects) - 3} more" if len(subjects) > 3 else ""
        lines.append(f"left out, {check}: {', '.join(subjects[:3])}{more}: {reason}")
    lines += [f"FAILED, {one.check}: {one.subject}: {one.detail}" for one in found if one.outcome == FAILED]
    return "\n".join(lines)


def main(functions: Functions, arguments: Sequence[str] | None = None) -> int:
    """Test a package, print a table, and return the exit code: 1 if anything failed."""
    parser = argparse.ArgumentParser(description="Test this package on this machine, against PyTorch.")
    parser.add_argument("functions", nargs="*", help="functions to test [default: all]")
    parser.add_argument("--calls", type=int, default=8, help="random calls of each function [default: 8]")
    parser.add_argument("--seed", type=int, default=0, help="number of the first random call")
    parser.add_argument("--device", help="such as cpu or cuda:1 [default: cuda where there is a GPU]")
    parser.add_argument("--check", action="append", choices=CHECKS, help="only this check; may be repeated")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.functions if name not in functions]:
        print(f"there is no `{unknown[0]}` in this package")
        return 2
    device = torch.device(given.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    setting = Setting(device, given.calls, given.seed)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU: kernels cannot run"
    print(f"{len(given.functions or functions)} functions on {card}, PyTorch {torch.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about calls that only a test makes
        found = list(results(functions, given.functions or list(functions), setting, given.check or CHECKS))
    print(table(found))
    return int(any(one.outcome == FAILED for one in found))
