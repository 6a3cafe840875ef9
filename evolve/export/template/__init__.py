"""Modules of an exported package's runtime. An export copies them with every module of `evolve` that they import."""
