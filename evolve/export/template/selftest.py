"""Tests of a package on the machine where it is installed: runs the checks, and prints failures and omitted checks."""

import argparse
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from time import monotonic

import torch

from evolve.export.template.checks import OF_FUNCTIONS, OF_KERNELS, OPAQUE, opaque_op
from evolve.export.template.dispatch import Primitive
from evolve.export.template.extent import TIME_IS_UP, LeftOutError, Setting
from evolve.export.template.functions import Functions

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"
CHECKS = (*OF_FUNCTIONS, *OF_KERNELS, OPAQUE)
SECONDS = 45  # default time limit, so that the test ends within a minute
BRIEF_CALLS = 2  # random calls of each function in the second round; in the first, it is one
SHARES = 4  # the most that a function takes of the remaining time, as a multiple of an equal share


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
    """Yield the results of these checks of functions and their kernels, one function after the other."""
    done: set[str] = set()
    for name in names:
        for check, of_function in OF_FUNCTIONS.items():
            if check in checks:
                yield _tried(check, name, partial(of_function, functions[name], setting))
        for op, primitive in functions[name].primitives.items():
            if op not in done:
                yield from _of_kernels(functions, primitive, setting, checks)
            done.add(op)


def _of_kernels(
    functions: Functions, primitive: Primitive, setting: Setting, checks: Collection[str]
) -> Iterator[Result]:
    for check, of_kernel in OF_KERNELS.items():
        if check in checks:
            yield _tried(check, primitive.op.name, partial(of_kernel, primitive, setting))
    if OPAQUE in checks:
        yield _tried(OPAQUE, primitive.op.name, partial(opaque_op, functions, primitive, setting))


class Test:
    """A test of functions within a time limit, in rounds: each kind of call once, then twice, then in full.

    Before the last round, no function takes much more than its share of the time: the rest of its checks wait for the
    next round.
    """

    def __init__(self, functions: Functions, setting: Setting, checks: Collection[str]) -> None:
        self._functions = functions
        self._setting = setting
        self.checks = checks
        self._found: dict[tuple[str, str], Result] = {}
        self.reached: set[str] = set()
        self.finished: set[str] = set()
        self._late: dict[str, set[str]] = {}  # checks of each function that wait for the next round, where they begin

    @property
    def found(self) -> list[Result]:
        """The results: for each check of a function or an op, the worst result."""
        return list(self._found.values())

    def run(self, names: Sequence[str], told: Callable[[str], None]) -> None:
        """Run the checks until the time limit. `told` is called with a line for each function."""
        until = self._setting.until
        for label, setting, checks in self._rounds():
            waiting = sorted(names, key=self._has_no_kernel)
            for place, name in enumerate(waiting):
                started = monotonic()
                if started > until:
                    return
                share = SHARES * (until - started) / (len(waiting) - place) if label else inf
                given = replace(setting, until=min(until, started + share))
                waited = self._late.get(name, set()) & checks
                found = list(results(self._functions, [name], replace(given, calls=1, is_first=True), waited))
                found += results(self._functions, [name], given, checks)
                ended = monotonic()
                for one in found:
                    self._keep(one)
                self._late[name] = {one.check for one in found if one.detail == TIME_IS_UP}
                if any(one.detail != TIME_IS_UP for one in found):
                    self.reached.add(name)
                if not label and ended <= until:
                    self.finished.add(name)
                told(_line(name, found, ended - started, label))
                if any(one.outcome == FAILED for one in found) and not _is_usable(setting.device):
                    told(f"after this failure {setting.device} cannot be used any more, so the test ends")
                    return

    def _rounds(self) -> list[tuple[str, Setting, set[str]]]:
        """Return the rounds: the label of each (none for the full one), its extent and its checks."""
        full = ("", self._setting, {*self.checks})
        if self._setting.until == inf:
            return [full]
        slow = {OPAQUE} if len(self.checks) > 1 else set()  # PyTorch's own test of an op takes longer than all others
        checks = {*self.checks} - slow
        twice = replace(self._setting, calls=min(BRIEF_CALLS, self._setting.calls), sizes=1)
        once = replace(twice, calls=min(1, self._setting.calls), is_first=True)
        return [("once", once, checks), ("briefly", twice, checks), full]

    def _has_no_kernel(self, name: str) -> bool:
        return not any(one.entry.kernels for one in self._functions[name].primitives.values())

    def _keep(self, one: Result) -> None:
        before = self._found.get((one.check, one.subject))
        if before is None or (before.outcome != FAILED and one.detail != TIME_IS_UP):
            self._found[one.check, one.subject] = one


def _is_usable(device: torch.device) -> bool:
    """Return False if a kernel has crashed on the GPU: all later calls of the process would fail too."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _line(name: str, found: Sequence[Result], seconds: float, label: str) -> str:
    outcomes = [one.outcome for one in found]
    counts = ", ".join(f"{outcomes.count(one)} {one}" for one in (PASSED, FAILED, LEFT_OUT) if one in outcomes)
    return f"{name:<32}{seconds:6.1f} s  {counts}{f' ({label})' if label else ''}"


def _unreached(names: Sequence[str], test: Test) -> Iterator[str]:
    """Yield lines about the functions and the checks for which there was no time."""
    missing = [name for name in names if name not in test.reached]
    brief = [name for name in names if name not in {*missing, *test.finished}]
    if missing:
        yield f"NOT REACHED: {len(missing)} of {len(names)} functions: {', '.join(missing)}"
    late = [one for one in test.found if one.detail == TIME_IS_UP]
    for check in dict.fromkeys(one.check for one in late):
        subjects = [one.subject for one in late if one.check == check]
        yield f"NOT REACHED, {check}: {len(subjects)} functions or ops: {', '.join(subjects)}"
    for check in [
        one for one in test.checks if missing != [*names] and one not in {found.check for found in test.found}
    ]:
        yield f"NOT REACHED, {check}: all functions"
    if brief:
        yield f"tested only briefly: {len(brief)} functions; --seconds 0 tests all in full"


def table(found: Sequence[Result]) -> str:
    """Return the number of outcomes of each check, the failures, and the reasons why checks were left out."""
    lines = [f"{'check':<20}{PASSED:>8}{FAILED:>8}{LEFT_OUT:>10}"]
    for check in dict.fromkeys(one.check for one in found):
        outcomes = [one.outcome for one in found if one.check == check]
        counts = [outcomes.count(outcome) for outcome in (PASSED, FAILED, LEFT_OUT)]
        lines.append(f"{check:<20}{counts[0]:>8}{counts[1]:>8}{counts[2]:>10}")
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if one.outcome == LEFT_OUT and one.detail != TIME_IS_UP:
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
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"seconds after which to stop; 0: no limit [default: {SECONDS}]"
    )
    parser.add_argument("--seed", type=int, default=0, help="number of the first random call")
    parser.add_argument("--device", help="device, such as cpu or cuda:1 [default: cuda if there is a GPU]")
    parser.add_argument("--check", action="append", choices=CHECKS, help="run only this check; repeatable")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.functions if name not in functions]:
        print(f"there is no `{unknown[0]}` in this package")
        return 2
    device = torch.device(given.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    setting = Setting(device, given.calls, given.seed, until=monotonic() + given.seconds if given.seconds else inf)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU: kernels cannot run"
    names = given.functions or list(functions)
    print(f"{len(names)} functions on {card}, PyTorch {torch.__version__}", flush=True)
    test = Test(functions, setting, given.check or CHECKS)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # several threads would only wait for each other, because the tensors are small
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides warnings of PyTorch about calls that only a test makes
            test.run(names, partial(print, flush=True))
    finally:
        torch.set_num_threads(threads)
    print("\n".join([table(test.found), *_unreached(names, test)]))
    return int(any(one.outcome == FAILED for one in test.found))
