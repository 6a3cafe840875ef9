import json
import subprocess
import sys
from pathlib import Path

import pytest

from evolve.engines import sandbox

ROOT = Path(__file__).parents[2]
ALWAYS = {
    "write in its own folder",
    "rename in its own folder",
    "read a visible file in the home",
    "import",
    "run a program",
    "write to /dev/null",
    "talk through a socket pair",
    "take a little memory",
}
OF_A_GPU = {"open a local socket", "read its parent's environment"}  # the second action is possible only for root


@pytest.fixture
def able(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, bool]:
    """Return the actions that still succeed in a confined process."""
    own, home = tmp_path / "own", tmp_path / "home"
    own.mkdir()
    (home / ".ssh").mkdir(parents=True)
    for file in (tmp_path / "precious", home / "notes", home / ".secret", home / ".ssh" / "id"):
        file.write_text("x")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "confined.py"), str(own), *getattr(request, "param", [])],
        env={"PYTHONPATH": str(ROOT), "HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        cwd=own,
    )
    assert done.stdout, done.stderr
    assert not list(own.glob("core*"))
    found: dict[str, bool] = json.loads(done.stdout)
    return found


pytestmark = pytest.mark.skipif(bool(sandbox.gaps()), reason="this system lacks something that the sandbox needs")


def test_a_worker_can_do_what_compilers_and_pytorch_need_and_nothing_else(able: dict[str, bool]) -> None:
    assert {name for name, can in able.items() if can} == ALWAYS


@pytest.mark.parametrize("able", [["gpu"]], indirect=True)
def test_a_worker_with_a_gpu_can_also_open_local_sockets(able: dict[str, bool]) -> None:
    assert {name for name, can in able.items() if can} - OF_A_GPU == ALWAYS
    assert able["open a local socket"]
    assert not able["open an internet socket"]


def test_a_check_of_the_protections_does_not_confine_the_process() -> None:
    assert sandbox.gaps() == sandbox.gaps() == []
    assert not [line for line in Path("/proc/self/status").read_text().splitlines() if line == "Seccomp:\t2"]
