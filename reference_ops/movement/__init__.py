"""Ops that move, select or round numbers and hardly compute."""
