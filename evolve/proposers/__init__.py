"""Proposers: a language model, the knob tuner, and a person with files."""
