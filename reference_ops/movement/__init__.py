"""Ops that move, select or round numbers, with little arithmetic."""
