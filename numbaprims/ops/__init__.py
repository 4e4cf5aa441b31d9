"""WHAT is computed: a stem is a file with its problem and its public functions, and no kernel."""
