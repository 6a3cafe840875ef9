"""Selection: what is known of the kernels of an op, which survive, and what a proposer is asked."""
