"""Windows on a GPU: pooling over one to three dimensions, and its gradients; a thread a result, or a pack of channels.

Bytes: each input element once, if the caches keep the overlap of neighbouring windows, and each result once.
"""

from numbaprims.gpu.windows.solvers import SOLVERS as SOLVERS
