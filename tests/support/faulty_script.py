"""Script of a faulty server that produces every fault in turn for each kind of prompt and records its responses."""

import itertools
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from scripted_endpoint import (
    Recorded,
    Step,
    answer,
    completion_body,
    hang_up,
    in_fence,
    raw,
    stall,
    status,
    truncated,
)
from scripted_runs import kernel

TASK = re.compile(r"# Your task\n(.{24})|(No kernel could be read)")
FAULTS = {
    "good", "stall", "429", "500", "prose", "503", "hang up", "truncated", "empty", "cut off", "malformed", "no usage",
    "wrong kind",
}  # fmt: skip
Usage = dict[str, Any]


@dataclass
class Script:
    """Script with every fault in turn for each kind of prompt, and good answers in between. All answers differ."""

    numbers: Iterator[int]
    tells_cost: bool = False
    stalls: bool = True
    usages: dict[int, Usage] = field(default_factory=dict)  # usages that were sent, by the number of prompt tokens
    uncounted: list[str] = field(default_factory=list)  # texts of answers without a count of tokens
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)  # counts by kind of prompt and name of the fault
    _turns: dict[str, Iterator[tuple[str, Callable[[], Step]]]] = field(default_factory=dict)

    def step(self, recorded: Recorded) -> Step:
        if "temperature" in recorded.body:
            return status(400, "Unsupported value: 'temperature' is not supported.", param="temperature")
        found = TASK.findall(recorded.prompt)[-1]
        kind = found[0] or found[1]
        if kind not in self._turns:
            first, rest = self._faults()
            self._turns[kind] = itertools.chain(first, itertools.cycle(rest))
        name, make = next(self._turns[kind])
        self.faults[kind, name] += 1
        return make()

    def _faults(self) -> tuple[list[tuple[str, Callable[[], Step]]], list[tuple[str, Callable[[], Step]]]]:
        good = ("good", self._good)
        named: dict[str, Callable[[], Step]] = {
            "429": lambda: status(429),
            "500": lambda: status(500),
            "prose": lambda: self._said("I would rather talk about kernels than write one"),
            "503": lambda: status(503),
            "hang up": hang_up,
            "truncated": lambda: truncated(in_fence(kernel(0).text)),
            "empty": lambda: self._said(""),
            "cut off": lambda: self._said("/*--- half a kernel", finish="length"),
            "malformed": lambda: raw('{"choices": [{"mess'),
            "no usage": self._uncounted,
            "wrong kind": lambda: self._said(in_fence(kernel(next(self.numbers)).text), kind="text/html"),
        }
        rest = [one for fault in named.items() for one in (fault, good)]
        return [good, ("stall", stall), good] if self.stalls else [], rest

    def _good(self) -> Step:
        return self._said(in_fence(kernel(next(self.numbers)).text))

    def _said(self, text: str, finish: str = "stop", kind: str = "application/json") -> Step:
        number = next(self.numbers)
        drawn = random.Random(number)
        prompt, completion = 10_000 + number, drawn.randint(50, 3_000)
        usage: Usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": drawn.randint(0, prompt)},
            "completion_tokens_details": {"reasoning_tokens": drawn.randint(0, completion)},
        }
        if self.tells_cost:
            usage["cost"] = drawn.uniform(0.001, 0.1)
        self.usages[prompt] = usage
        return raw(json.dumps(completion_body(text and f"{text}\n{number}", finish, usage=usage)), kind=kind)

    def _uncounted(self) -> Step:
        text = in_fence(kernel(next(self.numbers)).text)
        self.uncounted.append(text)
        return answer(text, usage=None)


def always_failing(numbers: Iterator[int]) -> Callable[[Recorded], Step]:
    """Return the reactions of a server that never gives an answer."""
    turns = itertools.cycle([status(500), status(503), hang_up(), status(404)])
    return lambda _: next(turns)


class Locked:
    """Numbers shared by the threads of several servers."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers, self._lock = numbers, threading.Lock()

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._numbers)
