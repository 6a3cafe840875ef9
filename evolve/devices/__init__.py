"""What compiles and runs kernels: `cuda` and `emulated`, behind one contract."""
