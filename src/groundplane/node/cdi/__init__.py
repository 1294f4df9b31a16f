"""CDI (Container Device Interface): what a spec file may hold, which there are, what they do, and how one is made.

`model` is the document with its rules (contracts/toolkit-cdi.md 1), `read` and `write` are its files, `registry` says
which devices a machine's files offer, `annotations` and `apply` how they are asked for and what they do to a container.
`generate` makes the specs of this machine (3), with the rooms beside it; `options` and `roots` say what is wanted.
"""
