"""Reductions and selections."""
