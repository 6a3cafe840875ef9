"""Proposers: language models, the knob tuner, and files given by the user."""
