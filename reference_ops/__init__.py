"""What to compute: reference ops in PyTorch, with the workloads they are measured on."""
