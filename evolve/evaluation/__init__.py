"""Evaluation of one kernel on one device: compile, check, time, confirm."""
