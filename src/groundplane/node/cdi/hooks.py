"""The hooks of a spec: programs that the runtime runs on the host (contracts/toolkit-cdi.md 3.5).

A :class:`Hooks` knows which are wanted and how each is written. Where they are called for is decided by ``generate``;
what they do is the host's executable.
"""

from collections.abc import Iterable
from typing import Final

from ...api.release import Release
from .model import Hook
from .options import GenerateError, Libraries, Mode, Wanted

CREATE_SYMLINKS: Final = "create-symlinks"
ENABLE_CUDA_COMPAT: Final = "enable-cuda-compat"
UPDATE_LDCACHE: Final = "update-ldcache"
DISABLE_DEVICE_NODE_MODIFICATION: Final = "disable-device-node-modification"
UPDATE_APPLICATION_PROFILE: Final = "update-application-profile"
CHMOD: Final = "chmod"
EVERY: Final = "all"
"""In a list of hooks that are disabled: each of them."""

NAMES: Final = (
    *(CREATE_SYMLINKS, ENABLE_CUDA_COMPAT, UPDATE_LDCACHE),
    *(DISABLE_DEVICE_NODE_MODIFICATION, UPDATE_APPLICATION_PROFILE, CHMOD),
)
DISABLED: Final = frozenset({CHMOD})
"""Hooks that are there only if asked for."""
_OLD_DISABLED: Final = {Mode.MANAGEMENT: frozenset({ENABLE_CUDA_COMPAT})}
"""Hooks that toolkit 1.19 has in a mode only if asked for."""
_NEW: Final = frozenset({UPDATE_APPLICATION_PROFILE})
"""Hooks that toolkit 1.19 does not know."""

_WHEN: Final = "createContainer"
_ENV: Final = ("NVIDIA_CTK_DEBUG=false",)
_CTK: Final = "nvidia-ctk"
_FOLDER_MODE: Final = "755"


class Hooks:
    """The hooks that a spec may have: each method gives one, or none where it is not wanted or would do nothing."""

    def __init__(self, wanted: Wanted, release: Release) -> None:
        if EVERY in wanted.enabled_hooks:
            raise GenerateError("enabling all hooks is not supported; name the hooks that are to be there")
        self._wanted = wanted
        self._old = release is Release.V26_3
        disabled = DISABLED | wanted.disabled_hooks
        if self._old:
            disabled |= _OLD_DISABLED.get(wanted.mode, frozenset())
        by_default = frozenset() if EVERY in disabled else frozenset(NAMES) - disabled
        self._enabled = (by_default | wanted.enabled_hooks) - (_NEW if self._old else frozenset())
        if wanted.libraries is Libraries.HOOKLESS:
            self._enabled = frozenset()

    def create_symlinks(self, links: Iterable[str]) -> tuple[Hook, ...]:
        """Makes links, each ``target::path``."""
        args = [word for link in dict.fromkeys(links) for word in ("--link", link)]
        return self._hook(CREATE_SYMLINKS, args) if args else ()

    def enable_cuda_compat(self, *args: str) -> tuple[Hook, ...]:
        """Prefers the image's compatibility libraries to the host's where they are newer."""
        return self._hook(ENABLE_CUDA_COMPAT, args)

    def update_ldcache(self, folders: Iterable[str]) -> tuple[Hook, ...]:
        """Adds folders to the loader's cache; before 1.20 there is such a hook even without folders."""
        folders = tuple(dict.fromkeys(folders))
        if not folders and not self._old:
            return ()
        path = ["--ldconfig-path", self._wanted.ldconfig_path] if self._wanted.ldconfig_path else []
        return self._hook(UPDATE_LDCACHE, [*path, *(word for each in folders for word in ("--folder", each))])

    def disable_device_node_modification(self) -> tuple[Hook, ...]:
        """Keeps the driver's libraries from making device nodes in the container."""
        return self._hook(DISABLE_DEVICE_NODE_MODIFICATION)

    def update_application_profile(self) -> tuple[Hook, ...]:
        """Tells EGL which GPUs there are."""
        return self._hook(UPDATE_APPLICATION_PROFILE)

    def chmod(self, folders: Iterable[str]) -> tuple[Hook, ...]:
        """Gives folders of device nodes their mode."""
        args = [word for folder in dict.fromkeys(folders) for word in ("--path", folder)]
        return self._hook(CHMOD, ["--mode", _FOLDER_MODE, *args]) if args else ()

    def _hook(self, name: str, args: Iterable[str] = ()) -> tuple[Hook, ...]:
        if name not in self._enabled:
            return ()
        path = self._wanted.hook_path
        program = path.rpartition("/")[2]
        head = (program, "hook") if program == _CTK else (program,)
        return (Hook(_WHEN, path, (*head, name, *args), _ENV),)
