"""The folder for what outlives a worker."""

import os
from pathlib import Path


def evolve_cache_dir() -> Path:
    """Return the user's cache folder for evolve; it need not exist yet."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if given.startswith("/") else Path.home() / ".cache"  # the standard ignores relative paths
    return root / "evolve"
