"""Kernels for NVIDIA GPUs, written with numba-cuda (the extra cu13 or cu12): the same stems and solver names as on
the CPU.  Importing this package imports nothing else; `jit.py` is the only module that imports numba.cuda."""
