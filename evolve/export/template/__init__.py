"""Modules of an exported package's runtime. An export copies them with all that they import of `evolve`."""
