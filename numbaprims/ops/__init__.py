"""What is computed: one file a stem, with its problem and its public functions; no kernels."""
