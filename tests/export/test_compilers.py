"""Processes that compile kernels for a package: an export ends even if they fail or never answer."""

import multiprocessing
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest
from faulty_compilers import FOREVER, HALF, compile_some

from evolve.export import compilers
from evolve.export.template import cached, cubins
from evolve.export.template.nvrtc import CompileError


@pytest.fixture(scope="module", autouse=True)
def _with_fork_server() -> None:
    """Start the fork server, which imports PyTorch, before any process has a limit of a few seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([cubins.__name__])
    process = context.Process(target=int)
    process.start()
    process.join()


@pytest.fixture(autouse=True)
def _in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(compilers, "MOST_COMPILED_HERE", 0)
    monkeypatch.setattr(compilers, "nvrtc", lambda: None)
    monkeypatch.setattr(compilers, "_compile", compile_some)


def unwatched(_more: int, _of: int) -> None:
    pass


@pytest.mark.parametrize(
    ("faulty", "limit_s", "message"),
    [(HALF, 60.0, "was ended, perhaps for lack of memory"), (FOREVER, 3.0, "took more than 3 s")],
)
def test_a_process_that_ends_or_never_answers_costs_only_the_kernel_on_which_it_worked(
    faulty: str, limit_s: float, message: str
) -> None:
    texts = [(name, "sm_90a") for name in ("first", faulty, "second", "third", "fourth")]
    with compilers.compilers(texts, unwatched, limit_s) as image:
        with pytest.raises(CompileError, match=message):
            image(*texts[1])
        for text, arch in (texts[0], *texts[2:]):
            assert image(text, arch) == f"cubin of {text}".encode()


def test_an_export_does_not_wait_for_processes_that_never_start(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Event()

    def start(_context: object) -> NoReturn:
        never.wait()
        raise AssertionError

    monkeypatch.setattr(compilers._Compiler, "started", start)
    texts = [(str(number), "sm_90a") for number in range(9)]
    with compilers.compilers(texts, unwatched, limit_s=0.2) as image:
        for text in texts:
            with pytest.raises(CompileError, match=r"have not answered for 0.4 s"):
                image(*text)
    never.set()
