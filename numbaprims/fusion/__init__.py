"""Networks of layers, planned so that element-wise layers and pooling run depth first: `fuse` and its descriptions."""
