"""Selection: the state of an op's kernels, which of them survive, and what to request from a proposer."""
