"""Softmax and what follows from it."""
