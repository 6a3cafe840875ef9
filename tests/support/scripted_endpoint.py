"""Scripted endpoint: a real HTTP server for OpenAI's chat completions that answers and fails according to a script.

with ScriptedEndpoint([status(429), answer(KERNEL)], otherwise=answer("no more")) as endpoint:
    subprocess.run(["evolve", "run", ...], env={**os.environ, **endpoint.environment})
"""

import json
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Body = dict[str, Any]
MODEL, KEY = "scripted-1", "sk-scripted-secret"
USAGE: Body = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
RETRY_AFTER = "0.02"
MAX_STALL_SECONDS, POLL_SECONDS = 60.0, 0.02


class Handler(BaseHTTPRequestHandler):
    """Handler that answers each request with the endpoint's next step."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        endpoint = self.server.endpoint
        if self.path.rstrip("/") == "/v1/models":
            endpoint.models_step(self)
        else:
            self.reply(404, {"error": {"message": f"no such path: {self.path}"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.rstrip("/") != "/v1/chat/completions":
            self.reply(404, {"error": {"message": f"no such path: {self.path}"}})
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.endpoint.take(Recorded(body, headers))(self)

    def reply(self, status: int, body: object, retry_after: str = "") -> None:
        self.send_text(status, json.dumps(body), retry_after=retry_after)

    def send_text(
        self, status: int, text: str, missing_bytes: int = 0, retry_after: str = "", kind: str = "application/json"
    ) -> None:
        """Send a response. With `missing_bytes`, announce more bytes than are sent, and close the connection."""
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data) + missing_bytes))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(data)
        if status == 200 and not missing_bytes:
            self.server.endpoint.delivered.append(text)
        self.close_connection = self.close_connection or missing_bytes > 0

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Print nothing: requests are recorded instead."""


Step = Callable[[Handler], None]


@dataclass(frozen=True)
class Recorded:
    """A request that has arrived."""

    body: Body
    headers: dict[str, str]  # header names are in lower case

    @property
    def authorization(self) -> str:
        return self.headers.get("authorization", "")

    @property
    def prompt(self) -> str:
        """Return all messages of the conversation, joined."""
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass(frozen=True)
class Rule:
    """A step for every request whose prompt contains all these words. It takes precedence over the script."""

    words: tuple[str, ...]
    step: Step


def answer(text: str, finish_reason: str = "stop", model: str = MODEL, usage: Body | None = USAGE) -> Step:
    return lambda handler: handler.reply(200, completion_body(text, finish_reason, model, usage))


def status(code: int, /, message: str = "scripted fault", retry_after: str = RETRY_AFTER, **error: str) -> Step:
    return lambda handler: handler.reply(code, {"error": {"message": message, **error}}, retry_after=retry_after)


def raw(text: str, code: int = 200, kind: str = "application/json") -> Step:
    """Send this body, whether or not it is JSON."""
    return lambda handler: handler.send_text(code, text, kind=kind)


def truncated(text: str) -> Step:
    """Send a completion whose body ends before its announced length."""
    return lambda handler: handler.send_text(200, json.dumps(completion_body(text)), missing_bytes=1000)


def hang_up() -> Step:
    """Close the connection without a response."""

    def step(handler: Handler) -> None:
        handler.close_connection = True

    return step


def stall() -> Step:
    """Send nothing until the client hangs up, the endpoint closes or a minute has passed."""

    def step(handler: Handler) -> None:
        endpoint = handler.server.endpoint
        ends = time.monotonic() + MAX_STALL_SECONDS
        while time.monotonic() < ends and not endpoint.closing.wait(POLL_SECONDS):
            if select.select([handler.connection], [], [], 0)[0]:
                endpoint.hung_up.set()
                break
        handler.close_connection = True

    return step


def drip(seconds: float) -> Step:
    """Send a space from time to time, as gateways do during a model's reasoning, and never an answer."""

    def step(handler: Handler) -> None:
        endpoint = handler.server.endpoint
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        handler.close_connection = True
        ends = time.monotonic() + MAX_STALL_SECONDS
        while time.monotonic() < ends and not endpoint.closing.wait(seconds):
            try:
                handler.wfile.write(b" ")
            except OSError:
                endpoint.hung_up.set()
                return

    return step


def models(*names: str) -> Step:
    return lambda handler: handler.reply(200, {"object": "list", "data": [{"id": name} for name in names]})


def completion_body(text: str, finish_reason: str = "stop", model: str = MODEL, usage: Body | None = USAGE) -> Body:
    counted = {} if usage is None else {"usage": usage}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}],
        **counted,
    }


def in_fence(kernel: str) -> str:
    """Return a model's reply that contains the kernel."""
    return f"The row fits into registers.\n\n```cuda\n{kernel}```\n"


@dataclass
class ScriptedEndpoint:
    """Endpoint that takes one step per request: from `reacts`, a rule, the script or `otherwise`, in this order."""

    steps: Sequence[Step] = ()
    otherwise: Step = field(default_factory=lambda: status(500, "the script is over"))
    rules: tuple[Rule, ...] = ()
    reacts: Callable[[Recorded], Step | None] = lambda _: None
    models_step: Step = field(default_factory=lambda: models(MODEL))
    requests: list[Recorded] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)  # bodies of good answers that were sent completely
    closing: threading.Event = field(default_factory=threading.Event)
    hung_up: threading.Event = field(default_factory=threading.Event)  # a client closed a connection before the answer

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._left = list(self.steps)

    def __enter__(self) -> Self:
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that make a process use only this endpoint, without a proxy."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}

    def take(self, recorded: Recorded) -> Step:
        """Record a request and return its step."""
        with self._lock:
            self.requests.append(recorded)
            if step := self.reacts(recorded):
                return step
            for rule in self.rules:
                if all(word in recorded.prompt for word in rule.words):
                    return rule.step
            return self._left.pop(0) if self._left else self.otherwise


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, endpoint: ScriptedEndpoint) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = endpoint

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: clients that close the connection are part of the script."""
