"""A package of small kernels that tests copy, edit and run in processes of their own."""
