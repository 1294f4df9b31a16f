"""The four ways to patch an object, as pure functions over documents that never change their arguments.

`jsonpatch` (RFC 6902), `merge` (RFC 7386), `strategic` (Kubernetes' own) and `apply` (server-side apply over the field
sets of `fields`; `typed` checks what is applied). Results share unchanged parts with the original, which the rest of
the lab uses to skip work.
"""

from .errors import PatchError
from .jsonpatch import apply_json_patch
from .merge import merge as merge_patch
from .strategic import strategic

__all__ = ["PatchError", "apply_json_patch", "merge_patch", "strategic"]
