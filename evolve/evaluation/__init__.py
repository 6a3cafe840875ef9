"""Evaluation of one kernel on one device: compiling, checking, timing and confirming."""
