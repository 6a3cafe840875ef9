"""Options, markers and profiles of the test suite: what the quick run leaves out, and where GPU tests are skipped."""

import os
from importlib.util import find_spec

import pytest

LONGEST = ("test_cheats.py", "test_killed_runs.py", "test_running.py")

collect_ignore: list[str] = []
collect_ignore_glob: list[str] = []
if find_spec("openai") is None:  # a GPU machine without network may lack it; tests marked `gpu` need no model
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
        "--rounds", type=int, default=1, help="how often tests/cheats evaluates every kernel, on new seeds"
    )
    parser.addoption("--every-kernel", action="store_true", help="evaluate every shipped kernel, not only some")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the hypothesis profiles; keep files in the order in which they are collected."""
    config.addinivalue_line("markers", "exhaustive: takes long; runs with --exhaustive alone")
    if hasattr(config.option, "loadscopereorder"):
        # xdist starts with the files that have the most tests; the files that take longest have few.
        config.option.loadscopereorder = False
    if find_spec("hypothesis"):
        from hypothesis import HealthCheck, settings

        slow = [HealthCheck.too_slow]
        settings.register_profile(
            "quick", max_examples=50, derandomize=True, deadline=None, database=None, suppress_health_check=slow
        )
        settings.register_profile(
            "exhaustive", max_examples=1000, deadline=None, database=None, print_blob=True, suppress_health_check=slow
        )
        settings.load_profile("exhaustive" if config.getoption("--exhaustive") else "quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out exhaustive tests unless asked for, start with the longest files and skip GPU tests without a GPU."""
    import torch

    if "PYTEST_XDIST_WORKER" in os.environ:  # there is one for each core
        torch.set_num_threads(1)
    if config.getoption("--exhaustive"):
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):  # with more examples
                item.add_marker(pytest.mark.exhaustive)
    else:
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
