"""Where what outlives a worker is kept."""

import os
from pathlib import Path


def evolve_cache_dir() -> Path:
    """The user's cache folder for evolve; it need not exist yet."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if given.startswith("/") else Path.home() / ".cache"  # relative paths count for nothing there
    return root / "evolve"
