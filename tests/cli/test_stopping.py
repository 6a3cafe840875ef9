import contextlib
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from evolve.cli.signals import Stopped, check, raising_stopped


def test_the_first_signal_stops_and_says_which_it_was() -> None:
    with pytest.raises(Stopped) as caught, raising_stopped():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.exit_code == 128 + signal.SIGTERM


def swallowed_then_checked() -> None:
    with raising_stopped():
        with contextlib.suppress(Stopped):  # as Python's import system does in its callbacks
            os.kill(os.getpid(), signal.SIGINT)
        check()


def test_a_stop_that_somebody_swallowed_is_raised_again_at_the_next_check() -> None:
    with pytest.raises(Stopped):
        swallowed_then_checked()


class Referred:
    """Something that a weak reference can watch."""


def called_back(callback: Callable[[object], object]) -> None:
    """From where Python lets no exception out."""
    referred = Referred()
    reference = weakref.ref(referred, callback)
    del referred
    assert reference() is None


def test_a_stop_that_python_swallowed_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with contextlib.suppress(Stopped), raising_stopped():
        called_back(lambda _: signal.raise_signal(signal.SIGINT))
        check()
    assert not told


def test_whatever_else_python_swallows_is_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with raising_stopped():
        called_back(lambda _: int("none"))
    assert len(told) == 1


def stopped_while_a_module_loads() -> None:
    with raising_stopped():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Stopped as stopped:
            raise ImportError("cannot load module more than once per process") from stopped


def test_a_stop_that_became_another_error_is_a_stop_all_the_same() -> None:
    with pytest.raises(Stopped) as caught:
        stopped_while_a_module_loads()
    assert caught.value.exit_code == 128 + signal.SIGINT


def test_an_error_without_a_stop_stays_what_it_is() -> None:
    with pytest.raises(ImportError), raising_stopped():
        raise ImportError("no module named so")


def test_without_a_signal_there_is_nothing_to_raise() -> None:
    with raising_stopped():
        check()


def test_the_handlers_are_as_before_afterwards() -> None:
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
