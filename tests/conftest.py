"""Options, markers and profiles of the test suite. They select tests for quick runs and for machines without a GPU."""

import gc
import os
from importlib.util import find_spec
from typing import Any

import pytest
from shared_engine import emulated_engine, shared_engine  # noqa: F401 - fixtures
from shipped_measurements import no_shipped_measurements, shipped_measurements  # noqa: F401 - fixtures
from warm_fork_servers import cold_fork_servers, warm_fork_servers  # noqa: F401 - fixtures

if "PYTEST_XDIST_WORKER" in os.environ:  # there are as many workers as cores; NumPy reads this when it is imported
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
LONGEST = (
    "test_cheats.py", "test_ordering_corpus.py", "test_killed_runs.py", "test_running.py", "test_run_with_a_model.py",
    "test_imports.py",
)  # fmt: skip

collect_ignore: list[str] = []
collect_ignore_glob: list[str] = []
if find_spec("openai") is None:  # a GPU machine without network may lack it; `gpu` tests do not need it
    collect_ignore += [
        "conformance/test_proposers.py",
        "proposers/llm/test_endpoint.py",
        "proposers/llm/test_llm_proposer.py",
        "proposers/llm/test_environment.py",
        "proposers/llm/test_several_models.py",
        "runs/test_faulty_endpoint.py",
        "runs/test_replayed_run.py",
    ]
if find_spec("hypothesis") is None:
    collect_ignore_glob += ["**/test_*_properties.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive", action="store_true", help="also run the tests marked `exhaustive`, which take minutes"
    )
    parser.addoption(
        "--rounds",
        type=int,
        default=1,
        help="how many times tests/cheats evaluates every kernel, with new seeds",
    )
    parser.addoption("--kills", type=int, default=3, help="how many nodes of a cluster tests/engines/test_ray.py kills")
    parser.addoption("--every-kernel", action="store_true", help="evaluate every shipped kernel, not only a selection")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are cores, because many tests wait for other processes or for deadlines."""
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the hypothesis profiles, and make xdist keep the order of files."""
    gc.disable()  # enabled again after collection, which imports hundreds of modules and makes no garbage
    config.addinivalue_line("markers", "exhaustive: takes long; runs only with --exhaustive")
    if hasattr(config.option, "loadscopereorder"):
        # xdist would start with the files that have the most tests, but the slowest files have only a few.
        config.option.loadscopereorder = False
    if find_spec("hypothesis"):
        from hypothesis import HealthCheck, settings

        slow = [HealthCheck.too_slow]
        settings.register_profile(
            "quick", max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=slow
        )
        settings.register_profile(
            "exhaustive", max_examples=300, deadline=None, database=None, print_blob=True, suppress_health_check=slow
        )
        settings.load_profile("exhaustive" if config.getoption("--exhaustive") else "quick")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let all of xdist's workers share what they compile."""
    from shared_objects import OF_THE_RUN, of_the_run

    node.workerinput[OF_THE_RUN] = of_the_run(node.config).address


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection, because they live until the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect exhaustive tests unless requested, start with the slowest files, and skip GPU tests without a GPU."""
    import torch

    if "PYTEST_XDIST_WORKER" in os.environ:  # there are as many workers as cores
        torch.set_num_threads(1)
    if config.getoption("--exhaustive"):
        for item in items:
            # --exhaustive runs these with more examples
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.exhaustive)
    else:
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="this machine has no NVIDIA GPU"))
