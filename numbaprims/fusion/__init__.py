"""Networks of layers of which stacks run depth first (`fuse`), and operators that run as few native calls
(`FusionPlan`): planned once, executed many times."""
