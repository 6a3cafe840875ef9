import os
from importlib.util import find_spec

import pytest

LONGEST = ("test_cheats.py", "test_killed_runs.py", "test_running.py")

if find_spec("openai") is None:  # a GPU machine without network may lack it; what is marked `gpu` needs no model
    collect_ignore = [
        "conformance/test_proposers.py",
        "proposers/llm/test_endpoint.py",
        "proposers/llm/test_llm_proposer.py",
        "proposers/llm/test_environment.py",
        "proposers/llm/test_several_models.py",
        "runs/test_faulty_endpoint.py",
        "runs/test_replayed_run.py",
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounds", type=int, default=1, help="how often tests/cheats evaluates every kernel, on new seeds"
    )
    parser.addoption("--every-kernel", action="store_true", help="evaluate every shipped kernel, not only some")


def pytest_configure(config: pytest.Config) -> None:
    """xdist hands out the files with the most tests first; those that take longest have few."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests skip themselves where there is no GPU; nobody waits in the end for what takes minutes."""
    import torch

    if "PYTEST_XDIST_WORKER" in os.environ:  # there is one for each core
        torch.set_num_threads(1)
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
