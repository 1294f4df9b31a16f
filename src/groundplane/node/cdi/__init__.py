"""CDI (Container Device Interface): what a spec file may hold, and how it is written.

`model` is the document with its rules (contracts/toolkit-cdi.md 1), `write` puts it where container runtimes look.
What stands in a spec is decided by who writes one.
"""
