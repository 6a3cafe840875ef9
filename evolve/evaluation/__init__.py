"""The verdict on a kernel: compile, check, time, in a process of its own."""
