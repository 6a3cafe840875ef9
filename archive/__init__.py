"""What is known: kernels, proposals, evaluations, and the store that keeps them for good."""
