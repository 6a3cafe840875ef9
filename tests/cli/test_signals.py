"""Signals: Ctrl-C and SIGTERM are raised as the same exception."""

import contextlib
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from evolve.cli.signals import Stopped, as_stopped, check, raising_stopped


def test_the_first_signal_raises_stopped_with_its_exit_code() -> None:
    with pytest.raises(Stopped) as caught, raising_stopped():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_code == 128 + signal.SIGTERM


def swallowed_then_checked() -> None:
    with raising_stopped():
        with contextlib.suppress(Stopped):  # Python's import system does the same in its callbacks
            os.kill(os.getpid(), signal.SIGINT)
        check()


def test_a_suppressed_stop_is_raised_again_at_the_next_check() -> None:
    with pytest.raises(Stopped):
        swallowed_then_checked()


class Referred:
    """An object that can have weak references."""


def called_back(callback: Callable[[object], object]) -> None:
    """Run the callback of a weak reference, in which Python suppresses exceptions."""
    referred = Referred()
    reference = weakref.ref(referred, callback)
    del referred
    assert reference() is None


def test_a_stop_that_python_suppressed_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with contextlib.suppress(Stopped), raising_stopped():
        called_back(lambda _: signal.raise_signal(signal.SIGINT))
        check()
    assert not printed


def test_other_errors_that_python_suppresses_are_printed_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with raising_stopped():
        called_back(lambda _: int("none"))
    assert len(printed) == 1


def stopped_while_a_module_loads() -> None:
    with raising_stopped():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Stopped as stopped:
            raise ImportError("cannot load module more than once per process") from stopped


def test_a_stop_that_becomes_another_error_is_raised_as_a_stop() -> None:
    with pytest.raises(Stopped) as caught:
        stopped_while_a_module_loads()
    assert caught.value.exit_code == 128 + signal.SIGINT


def stopped_in_a_message() -> None:
    with as_stopped():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Stopped as stopped:
            raise TypeError("cannot pack the message") from stopped


def test_the_code_that_prints_results_gets_the_stop_in_place_of_the_other_error() -> None:
    with raising_stopped(), pytest.raises(Stopped):
        stopped_in_a_message()


def test_an_error_without_a_signal_is_not_changed() -> None:
    with pytest.raises(ImportError), raising_stopped():
        raise ImportError("no module named so")


def test_check_raises_nothing_without_a_signal() -> None:
    with raising_stopped():
        check()


def test_the_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with raising_stopped():
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def stopped_while_torch_loads(loaded: list[bool]) -> None:
    loading = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.2)\nloaded.append(True)"
    with raising_stopped():
        exec(compile(loading, "/somewhere/torch/__init__.py", "exec"), {"loaded": loaded})
        time.sleep(5)


def test_a_stop_waits_until_torch_has_loaded() -> None:
    loaded: list[bool] = []
    with pytest.raises(Stopped):
        stopped_while_torch_loads(loaded)
    assert loaded
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
