"""The work of workloads, read by another process."""

import subprocess
import sys
from pathlib import Path

import pytest
import shown_archive
from command import environment
from shown_archive import CPU, H200

from evolve.pages import roofline
from evolve.pages.roofline import WorkAside, work_of

SHOWN = """
import sys
from pathlib import Path
from archive.sqlite import open_archive
from evolve.pages.site import Site

site, store = Site(), open_archive(Path(sys.argv[1]), read_only=True)
site.prepare(store)
page = site.page(store, ("op", "softmax"))
print("Roofline" in page.body, "torch" in sys.modules)
"""


UNKNOWN = "/somewhere/mine.py:fused"


@pytest.fixture(scope="module")
def aside() -> WorkAside:
    """Return the records that one process has read."""
    made = WorkAside()
    made.read([("softmax", H200), ("gelu", H200), ("softmax", CPU), (UNKNOWN, H200)])
    return made


def test_the_work_equals_that_of_the_ops(aside: WorkAside) -> None:
    assert aside("softmax", H200) == work_of("softmax", H200)
    assert aside("gelu", H200) == work_of("gelu", H200)
    assert aside("softmax", CPU) != aside("softmax", H200)  # the CPU has other rates


def test_an_op_that_the_catalog_does_not_have_has_no_work(aside: WorkAside) -> None:
    assert aside(UNKNOWN, H200) == {}


def test_an_op_that_cannot_be_read_is_not_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    aside = WorkAside()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert aside("softmax", H200) == {}
    monkeypatch.setattr(roofline, "_read", lambda _wanted: pytest.fail("asked again"))
    assert aside("softmax", H200) == {}


def test_a_server_shows_rooflines_without_pytorch_in_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "archive.db"
    shown_archive.fill(path, 2).close()
    command = [sys.executable, "-c", SHOWN, str(path)]
    shown = subprocess.run(command, env=environment({}), capture_output=True, text=True, check=False)
    assert shown.stdout.split() == ["True", "False"], shown.stderr
