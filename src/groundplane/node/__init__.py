"""What runs ON a GPU node: ``hostroot.py`` is every host path, ``kubeletapi`` the kubelet's gRPC sockets."""
