"""Limits that prompts and their sections share: lengths of text, and the capacity of a multiprocessor."""

MAX_TOKENS = 16_000  # limit on a prompt with all its messages
MAX_NOTE, MAX_WORKLOAD = 240, 160  # characters of a kernel's note and a workload's key
REGISTERS, THREADS, BLOCKS = 65_536, 2048, 32  # per multiprocessor since Volta, except on `SMALL_ARCHS`
SMALL_ARCHS = ("sm_75", "sm_86", "sm_87", "sm_89", "sm_120")  # their multiprocessors hold fewer threads
