"""Excerpts of files: only the code that a function needs."""

import pytest

from reference_ops.tasks.excerpt import excerpt
from reference_ops.tasks.source import TaskError

FILE = '''"""A program."""
from __future__ import annotations

import os, torch
import torch.nn.functional as F
import evolve
from math import pi, tau

PASSWORD = "secret"
TABLE = [pi]
for index in range(2):
    TABLE.append(index)
OTHERS = []
OTHERS.append(PASSWORD)


# Half of it.
def half(x, PASSWORD=1):
    return x / 2 * TABLE[0]


@torch.no_grad()
@evolve.op(
    lambda: (torch.randn(3),),
)
def fused(x: torch.Tensor):
    """Doubled."""
    return F.relu(half(x))  # by two


def other():
    return os.environ[PASSWORD]


if __name__ == "__main__":
    TABLE = other()
'''


def test_an_excerpt_has_a_function_and_only_the_code_it_uses() -> None:
    assert (
        excerpt(FILE, ["fused"])
        == '''from __future__ import annotations
import torch
import torch.nn.functional as F
from math import pi

TABLE = [pi]
for index in range(2):
    TABLE.append(index)


# Half of it.
def half(x, PASSWORD=1):
    return x / 2 * TABLE[0]


@torch.no_grad()
def fused(x: torch.Tensor):
    """Doubled."""
    return F.relu(half(x))  # by two
'''
    )


def test_an_excerpt_works_by_itself() -> None:
    defined: dict[str, object] = {}
    exec(excerpt(FILE.replace("F.relu", "F.relu6"), ["fused"]), defined)
    assert callable(defined["fused"])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fused = lambda x: scaled(x)\nscaled = abs\nleft = out = 1", "fused"),
        ("scaled = abs\nclass fused(int):\n    def f(self): return scaled(self)\nleft = out = 1", "fused"),
        ("def fused(x):\n    global scaled\n    scaled = 1\nscaled = 2\nleft = out = 1", "fused"),
        (
            "try:\n    import scaled\nexcept ImportError:\n    scaled = None\ndef fused(x): return scaled\nleft = 1",
            "fused",
        ),
        ("from torch import scaled as fused, left", "fused"),
    ],
)
def test_an_excerpt_follows_names_wherever_they_are_bound(text: str, name: str) -> None:
    found = excerpt(text, [name])
    assert "scaled" in found
    assert "left" not in found


def test_a_name_that_the_file_does_not_define_is_an_error() -> None:
    with pytest.raises(TaskError, match="defines no `fused`"):
        excerpt("globals()['fused'] = abs", ["fused"])
