"""Archive of kernels, proposals and evaluations: their formats, and the store that keeps them."""
