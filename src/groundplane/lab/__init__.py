"""The lab: an embedded Kubernetes cluster in one process, with simulated GPU nodes.

The operator and the node programs that run in it are the shipped ones; what is simulated (kernel modules, NVML,
container processes) sits behind the same protocols as the real thing. See docs/lab.md.
"""

import os

# A plugin's socket that closes is everyday life on a node; gRPC's core would write about it on standard error.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
