"""The workers of an engine and the nursery behind them: forked, listened to, replaced, and ended without a trace."""

import contextlib
import itertools
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from archive.records import DeviceInfo
from evolve.engines.handles import Nursery, Worker
from evolve.engines.messages import Exited, Failed, Fork, Forked, Message, Role, decode
from evolve.errors import UserError

FOLDER_PREFIX = "evolve-engine-"
CUBIN_SECONDS = 600.0  # after which nobody will load any more what was compiled


class Crew:
    """One worker per role that was asked for, all the time."""

    def __init__(self, device_kind: str, roles: Sequence[Role], memory_bytes: Mapping[Role, int | None]) -> None:
        sweep()
        self._memory_bytes = memory_bytes
        self.workers: list[Worker] = []
        self._kind = device_kind
        self._dying: dict[int, Worker] = {}
        self._numbers = itertools.count()
        self._nursery: Nursery | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        try:
            self._cubins = self.folder / "cubins"
            self._cubins.mkdir()
            self._nursery = Nursery(device_kind, self.folder)
            for role in roles:
                self.workers.append(self._forked(role, None))
        except BaseException:
            self.close()
            raise

    def replace(self, worker: Worker, device: DeviceInfo | None) -> None:
        """A new worker at once; the old one is ended, which may take its time."""
        self.workers[self.workers.index(worker)] = self._forked(worker.role, device)
        if worker.status is None:
            self._dying[worker.number] = worker
            self._living_nursery.kill(worker.number)
        else:
            shutil.rmtree(worker.folder, ignore_errors=True)
        worker.line.end.close()
        self._remove_old_cubins()

    def news(self, seconds: float) -> Iterator[tuple[Worker, Message]]:
        """What workers say within a moment. That one has exited comes last of what there is to hear of it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._living_nursery.line.end, selectors.EVENT_READ)
            for worker in self.workers:
                wanted = selectors.EVENT_WRITE * bool(worker.line.unsent)
                wanted |= selectors.EVENT_READ * (worker.line.hung_up_at is None)
                if wanted:
                    selector.register(worker.line.end, wanted, worker)
            ready = {key.data for key, _ in selector.select(seconds)}
        for worker in ready.intersection(self.workers):
            worker.line.flush()
            yield from self._said(worker)
        if None in ready:
            yield from self._news_of_nursery()

    def close(self) -> None:
        """Neither a process nor a file is left behind; safe at any moment, and twice."""
        if nursery := self._nursery:
            if nursery.close() != 0:
                self._kill_orphans()
            self._nursery = None
        for worker in self.workers:
            worker.line.end.close()
        self.workers = []
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _living_nursery(self) -> Nursery:
        if self._nursery is None:
            raise RuntimeError("the engine was closed")
        return self._nursery

    def _forked(self, role: Role, device: DeviceInfo | None) -> Worker:
        number = next(self._numbers)
        folder = self.folder / f"worker-{number}"
        folder.mkdir()
        fork = Fork(number, role, str(folder), str(self._cubins), self._memory_bytes[role], device)
        line = self._living_nursery.fork(fork)
        return Worker(number, role, folder, line)

    def _said(self, worker: Worker) -> Iterator[tuple[Worker, Message]]:
        for line in worker.line.received():
            try:
                message = decode(line)
            except (ValueError, TypeError, KeyError, AttributeError):  # whoever wrote that is no longer itself
                self._living_nursery.kill(worker.number)
                return
            yield worker, message
            if worker not in self.workers:
                return

    def _news_of_nursery(self) -> Iterator[tuple[Worker, Message]]:
        nursery = self._living_nursery
        for line in nursery.line.received():
            nursery.served = True
            match decode(line):
                case Forked(number=number, pid=pid):
                    for worker in (*self.workers, *self._dying.values()):
                        worker.pid = pid if worker.number == number else worker.pid
                case Exited(number=number) as exited:
                    yield from self._exited(number, exited)
                case Failed(message=message, hint=hint):
                    raise UserError(message, hint)
        if nursery.line.hung_up_at is not None:
            yield from self._without_nursery(nursery)

    def _exited(self, number: int, exited: Exited) -> Iterator[tuple[Worker, Message]]:
        if corpse := self._dying.pop(number, None):
            shutil.rmtree(corpse.folder, ignore_errors=True)
        for worker in [worker for worker in self.workers if worker.number == number]:
            worker.status = exited.status
            yield from self._said(worker)
            if worker in self.workers:
                yield worker, exited

    def _without_nursery(self, nursery: Nursery) -> Iterator[tuple[Worker, Message]]:
        """Somebody ended the nursery, and with it every worker."""
        words, status = nursery.last_words(), nursery.close()
        self._kill_orphans()
        if not nursery.served and -status not in (signal.SIGKILL, signal.SIGTERM):
            raise UserError(f"the {self._kind} device did not start: exit status {status}{words}", "see evolve doctor")
        for corpse in self._dying.values():
            shutil.rmtree(corpse.folder, ignore_errors=True)
        self._dying = {}
        self._nursery = Nursery(self._kind, self.folder)
        for worker in list(self.workers):
            worker.status = -signal.SIGKILL
            yield worker, Exited(worker.number, worker.status)

    def _kill_orphans(self) -> None:
        """Workers die with a nursery that was killed, what they started does not."""
        for worker in (*self.workers, *self._dying.values()):
            with contextlib.suppress(OSError):
                if worker.pid:
                    os.killpg(worker.pid, signal.SIGKILL)

    def _remove_old_cubins(self) -> None:
        for file in self._cubins.iterdir():
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < time.time() - CUBIN_SECONDS:
                    file.unlink()


def sweep() -> None:
    """Remove the folders of engines that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
        owner = folder.name.removeprefix(FOLDER_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
