"""A headless Chromium, driven over its debugging pipe without any further package."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--hide-scrollbars", "--disable-extensions",
)  # fmt: skip
SECONDS = 60.0


@dataclass
class Browser:
    """One tab. `complaints` gathers console errors, exceptions and violations; `requests` every requested address."""

    write: int
    read: int
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    target: str = ""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: bool = False
    waiting: bytes = b""

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command, wait for its result and return it."""
        number = next(self.numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.target:
            message["sessionId"] = self.target
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._take(answer)

    def open(self, address: str) -> None:
        """Load an address, and wait until everything on it is loaded."""
        self.loaded = False
        self.call("Page.navigate", url=address)
        ends = time.monotonic() + SECONDS
        while not self.loaded and time.monotonic() < ends:
            self.run("document.readyState")
        assert self.loaded, f"{address} did not load"

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page, also of a promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 15.0) -> None:
        """Wait until an expression on the page is true."""
        ends = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < ends, f"not true within {seconds:g} s: {script}"
            time.sleep(0.05)

    def view(self, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.waiting:
            self.waiting += os.read(self.read, 1 << 20)
        text, _, self.waiting = self.waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _take(self, event: dict[str, Any]) -> None:
        method, said = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(said["args"])[:500])
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {said['message']}")


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()

    def connect() -> None:
        os.dup2(to_read, 3)
        os.dup2(from_write, 4)

    # The child must not close 3 and 4, and the ends of the pipes may already have these numbers.
    kept = [os.dup(end) if end in (3, 4) else end for end in (to_read, from_write)]
    to_read, from_write = kept
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
        preexec_fn=connect,  # noqa: PLW1509 - it only duplicates two files
        close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    tab = Browser(to_write, from_read)
    try:
        targets = tab.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        tab.target = tab.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        yield tab
    finally:
        process.kill()
        process.wait()
        for end in (to_write, from_read):
            with suppress(OSError):
                os.close(end)
