"""How it is computed on the CPU: kernels and their solvers, one file or folder a stem."""
