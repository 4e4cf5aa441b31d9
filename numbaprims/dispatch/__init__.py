"""Which solver runs: problems, solvers, the registry, the choice, and the road from a call to a launcher."""
