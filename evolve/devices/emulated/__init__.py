"""The CPU as a GPU: the host compiler, fibres for threads."""
