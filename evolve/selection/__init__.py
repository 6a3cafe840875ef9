"""Selection: the state of an op's kernels, the choice of survivors, and the requests to proposers."""
