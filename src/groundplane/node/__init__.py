"""What runs ON a GPU node, and the host it sees: ``hostroot.py`` for every host path, ``kubeletapi`` for its sockets."""
