"""Reference ops in PyTorch, with the workloads on which kernels are measured."""
