"""How kernels are found: propose, evaluate, archive, select, export."""
