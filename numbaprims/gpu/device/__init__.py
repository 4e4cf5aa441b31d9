"""Device functions: what kernels call.  The only place of the GPU side that emits LLVM code and inline PTX."""
