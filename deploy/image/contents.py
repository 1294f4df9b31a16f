"""What goes into the image: tables of packages, of what is left out of them and why, and of executables.

Nothing is done here; `debian`, `wheels` and `build` read these tables.
"""

from collections.abc import Mapping

from groundplane.node.programs import PROGRAMS

PACKAGES = ("python3-minimal", "libpython3-stdlib", "bash", "busybox", "ca-certificates", "libstdc++6")
"""Debian packages asked for; apt adds what they need. busybox gives everything of a base system but the shell.

sh is bash: it lets the last command of `sh -c` take its process over, so that an operand's program gets the container's
SIGTERM. Debian's dash does not.
"""

LEFT_OUT: Mapping[str, str] = {
    "debconf": "asks questions at installation",
    "debianutils": "for package scripts",
    "dpkg": "manages packages; the image's are listed in /usr/share/groundplane/packages",
    "gcc-12-base": "documentation only",
    "gcc-14-base": "documentation only",
    "libcom-err2": "for Kerberos",
    "libdb5.3": "for the module _dbm",
    "libgssapi-krb5-2": "for NIS",
    "libk5crypto3": "for NIS",
    "libkeyutils1": "for NIS",
    "libkrb5-3": "for NIS",
    "libkrb5support0": "for NIS",
    "libmd0": "for dpkg",
    "libacl1": "for tar",
    "libncursesw6": "for the module _curses",
    "libnsl2": "for the module nis",
    "libpcre2-8-0": "for SELinux' tools",
    "libreadline8": "for interactive use of Python",
    "libselinux1": "for tar and dpkg",
    "libsqlite3-0": "for the module sqlite3",
    "libtirpc-common": "for the module nis",
    "libtirpc3": "for the module nis",
    "libzstd1": "for dpkg",
    "mawk": "busybox has awk",
    "media-types": "for mail and web servers",
    "openssl": "makes the links of /etc/ssl/certs; one bundle is enough",
    "readline-common": "for interactive use of Python",
    "tar": "busybox has tar",
}
"""Packages that apt would install and why the image does without them.

A package may only stand here if no file of the image needs one of its libraries (`debian.unresolved` finds those).
"""

PRUNED = (
    "usr/share/bash-completion",
    "usr/share/bug",
    "usr/share/debianutils",
    "usr/share/doc-base",
    "usr/share/info",
    "usr/share/initramfs-tools",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/menu",
    "usr/share/pixmaps",
    "usr/share/applications",
    "usr/share/binfmts",
    "usr/share/gcc",
    "usr/share/gdb",
    "usr/share/python3",
    "usr/share/perl5",
    "usr/share/debhelper",
    "usr/lib/python3/dist-packages",
    "usr/lib/valgrind",
    "usr/lib/binfmt.d",
    "usr/games",
    "usr/include",
    "usr/src",
    "usr/lib/*-linux-gnu/gconv",
    "usr/lib/*-linux-gnu/audit",
    "etc/dpkg",
    "boot",
    "srv",
    "etc/update-motd.d",
    "etc/skel",
    "etc/motd",
    "etc/issue",
    "etc/issue.net",
    "etc/ca-certificates",
    "usr/sbin/update-ca-certificates",
    "usr/bin/bashbug",
    "usr/bin/clear_console",
    "usr/bin/py3compile",
    "usr/bin/py3clean",
)
"""Files and folders of the packages that nothing reads at run time, as shell patterns below the root."""

PRUNED_STDLIB = (
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "sqlite3",
    "test",
    "tkinter",
    "turtledemo",
    "turtle.py",
    "lib-dynload/_ctypes_test.*",
    "lib-dynload/_curses*",
    "lib-dynload/_dbm.*",
    "lib-dynload/_gdbm.*",
    "lib-dynload/_sqlite3.*",
    "lib-dynload/_test*",
    "lib-dynload/_tkinter.*",
    "lib-dynload/_xx*",
    "lib-dynload/nis.*",
    "lib-dynload/ossaudiodev.*",
    "lib-dynload/readline.*",
    "lib-dynload/xx*",
)
"""Parts of Python's library that the image does without, as shell patterns below /usr/lib/pythonX.Y."""

USER = 65532
"""Who runs the image when the pod says nothing (as NVIDIA's operator image); operands' pods say 0 where they must."""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "NVIDIA_VISIBLE_DEVICES": "void",
}
"""Environment of the image: with the NVIDIA runtime it gets no GPU by itself, as NVIDIA's operator image."""

ACCOUNTS = (("root", 0, "/root"), ("nobody", 65534, "/nonexistent"), ("nonroot", USER, "/home/nonroot"))
"""Users, each with a group of the same name and number."""

EXECUTABLES: Mapping[str, str] = {
    "groundplane": "groundplane.cli.main:main",
    "gpu-operator": "groundplane.operator.main:main",
    "manage-crds": "groundplane.operator.manage_crds:main",
    **dict.fromkeys(PROGRAMS, "groundplane.node.__main__:main"),
}
"""The shipped programs by the name they are called by: `module:function`."""

TITLES: Mapping[str, str] = {
    "nvidia-device-plugin": "nvidia-device-plugin",
    "gpu-feature-discovery": "gpu-feature-discovery",
    "mps-control-daemon": "/usr/bin/mps-control-daemon",
}
"""Programs that NVIDIA's config-manager looks for by their argv[0], and what it must be; else it is the interpreter's.

Source: contracts/device-plugin-gfd.md 7 and 14.
"""

STAND_INS = "groundplane.lab.onnode:main"
"""What runs under every other name (`stand_ins`), until each has its own room."""

NOT_OURS = ("pause", "nginx")
"""Programs of the lab's images that have nothing to do with GPUs."""

DRIVER_ONLY = ("nvidia-smi",)
"""Executables that a container has only when the driver's own image or an injection brings them."""


def stand_ins() -> tuple[str, ...]:
    """The executables of the operands' images for which the lab has a stand-in, sorted."""
    from groundplane.lab import images

    names = {name for image in images.IMAGES.values() for name in image.executables}
    return tuple(sorted(names - {*NOT_OURS, *EXECUTABLES, *DRIVER_ONLY}))
