"""int8 and bf16 convolution on the CPU by dot instructions and tile registers."""
