"""Networks of layers whose element-wise layers and pooling run depth first (`fuse`), and operators that run as few native
calls (`FusionPlan`): planned once, executed many times."""
