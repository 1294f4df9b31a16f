"""The container image: one OCI image with the operator and all node programs, built without a daemon or root.

`python -m deploy.image` makes it. `contents` is the table of what goes in; `debian`, `wheels` and `compiled` fetch and
lay out the parts below a folder; `archive` turns folders into layers and layers into an OCI archive, byte for byte the
same each time; `build` puts them in order. `aliases` makes archives for tests in which the one image stands for others.
"""
