"""The files of a driver, as tables: libraries with the releases that have them, and where each installation has them.

Names and places are public: NVIDIA's installer lists them in its manifest, the distributions in their packages.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

_NEVER: Final = 10_000


class Library(NamedTuple):
    """A library: its name without version, and the number of its SONAME (empty: the SONAME has the whole version).

    ``since`` and ``until`` are the first and the last driver that have it, ``version`` its version if it is not the
    driver's, ``folder`` a folder below that of the libraries. ``plain`` says what a link without version leads to:
    ``soname`` or ``own``, if there is one.
    """

    stem: str
    soname: str = ""
    since: int = 0
    until: int = _NEVER
    version: str = ""
    folder: str = ""
    plain: str = ""


LIBRARIES: Final = (
    # compute
    Library("libcuda.so", "1", plain="soname"),
    Library("libcudadebugger.so", "1"),
    Library("libnvidia-gpucomp.so", since=550),
    Library("libnvidia-ml.so", "1", plain="own"),
    Library("libnvidia-nvvm.so", "4", plain="soname"),
    Library("libnvidia-nvvm70.so", "4", since=580, version="4"),
    Library("libnvidia-opencl.so", "1"),
    Library("libnvidia-pkcs11.so", since=535),
    Library("libnvidia-pkcs11-openssl3.so", since=535),
    Library("libnvidia-ptxjitcompiler.so", "1", plain="soname"),
    Library("libnvidia-sandboxutils.so", "1", since=570, plain="soname"),
    Library("libnvidia-tileiras.so", since=590),
    Library("libnvidia-cfg.so", "1", plain="soname"),
    # video
    Library("libnvcuvid.so", "1", plain="soname"),
    Library("libnvidia-encode.so", "1", plain="soname"),
    Library("libnvidia-opticalflow.so", "1"),
    Library("libvdpau_nvidia.so", "1", folder="vdpau"),
    # graphics
    Library("libEGL_nvidia.so", "0"),
    Library("libGLESv1_CM_nvidia.so", "1"),
    Library("libGLESv2_nvidia.so", "2"),
    Library("libGLX_nvidia.so", "0"),
    Library("libnvidia-allocator.so", "1", plain="soname"),
    Library("libnvidia-api.so", "1", since=550, version="1"),
    Library("libnvidia-eglcore.so"),
    Library("libnvidia-fbc.so", "1", plain="soname"),
    Library("libnvidia-glcore.so"),
    Library("libnvidia-glsi.so"),
    Library("libnvidia-glvkspirv.so"),
    Library("libnvidia-gtk3.so"),
    Library("libnvidia-ngx.so", "1"),
    Library("libnvidia-present.so", since=570),
    Library("libnvidia-rtcore.so"),
    Library("libnvidia-tls.so"),
    Library("libnvidia-vksc-core.so", "1", since=570),
    Library("libnvidia-vulkan-producer.so", until=570, plain="own"),
    Library("libnvidia-wayland-client.so", since=535),
    Library("libnvoptix.so", "1"),
    # graphics, with versions of their own
    Library("libnvidia-egl-gbm.so", "1", until=569, version="1.1.0"),
    Library("libnvidia-egl-gbm.so", "1", since=570, version="1.1.2"),
    Library("libnvidia-egl-wayland.so", "1", until=569, version="1.1.12"),
    Library("libnvidia-egl-wayland.so", "1", since=570, version="1.1.20"),
    Library("libnvidia-egl-wayland2.so", "1", since=590, version="1.0.0"),
    Library("libnvidia-egl-xcb.so", "1", since=570, version="1.0.3"),
    Library("libnvidia-egl-xlib.so", "1", since=570, version="1.0.3"),
)
ALWAYS_PLAIN: Final = frozenset({"libcuda.so", "libnvcuvid.so", "libnvidia-encode.so", "libnvidia-vulkan-producer.so"})
"""Libraries that packages, too, link without version."""

BINARIES: Final = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nvidia-modprobe", "nvidia-bug-report.sh", "nvidia-xconfig"),
)
FIRMWARE: Final = ("gsp_ga10x.bin", "gsp_tu10x.bin")


class Config(NamedTuple):
    """A configuration file, the first driver that has it, and the installations that do."""

    path: str
    since: int = 0
    kinds: frozenset[str] = frozenset({"ubuntu", "rhel", "container"})


_PACKAGES: Final = frozenset({"ubuntu", "rhel"})
_RHEL: Final = frozenset({"rhel"})
_UBUNTU: Final = frozenset({"ubuntu"})
_CONTAINER: Final = frozenset({"container"})
CONFIGS: Final = (
    Config("/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    Config("/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json"),
    Config("/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json"),
    Config("/usr/share/egl/egl_external_platform.d/09_nvidia_wayland2.json", 590),
    Config("/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json", 570),
    Config("/usr/share/egl/egl_external_platform.d/20_nvidia_xlib.json", 570),
    Config("/usr/share/nvidia/nvoptix.bin"),
    Config("/etc/X11/xorg.conf.d/10-nvidia.conf", 0, _RHEL),
    Config("/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf", 0, _UBUNTU | _CONTAINER),
    Config("/etc/OpenCL/vendors/nvidia.icd"),
    Config("/usr/share/vulkan/icd.d/nvidia_icd.json", 0, _UBUNTU),
    Config("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", 0, _RHEL),
    Config("/etc/vulkan/icd.d/nvidia_icd.json", 0, _CONTAINER),
    Config("/usr/share/vulkan/implicit_layer.d/nvidia_layers.json", 0, _PACKAGES),
    Config("/etc/vulkan/implicit_layer.d/nvidia_layers.json", 0, _CONTAINER),
)


class Layout(NamedTuple):
    """Where an installation has its files. ``all_plain``: libraries are linked without version, too."""

    libraries: str
    xorg_drivers: str
    xorg_extensions: str
    folder_links: tuple[tuple[str, str], ...]
    sockets: tuple[str, ...] = ()
    all_plain: bool = False


_UBUNTU_LIBRARIES: Final = "/usr/lib/x86_64-linux-gnu"
LAYOUTS: Final[Mapping[str, Layout]] = {
    "ubuntu": Layout(
        _UBUNTU_LIBRARIES,
        f"{_UBUNTU_LIBRARIES}/nvidia/xorg",
        f"{_UBUNTU_LIBRARIES}/nvidia/xorg",
        (
            ("/bin", "usr/bin"),
            ("/lib", "usr/lib"),
            ("/lib64", "usr/lib64"),
            ("/sbin", "usr/sbin"),
            ("/var/run", "/run"),
        ),
        ("/run/nvidia-persistenced/socket",),
    ),
    "rhel": Layout(
        "/usr/lib64",
        "/usr/lib64/xorg/modules/drivers",
        "/usr/lib64/xorg/modules/extensions",
        (
            ("/bin", "usr/bin"),
            ("/lib", "usr/lib"),
            ("/lib64", "usr/lib64"),
            ("/sbin", "usr/sbin"),
            ("/var/run", "../run"),
        ),
        ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"),
    ),
    "container": Layout(
        _UBUNTU_LIBRARIES,
        "/usr/lib/xorg/modules/drivers",
        "/usr/lib/xorg/modules/extensions",
        (
            ("/bin", "usr/bin"),
            ("/lib", "usr/lib"),
            ("/lib64", "usr/lib64"),
            ("/sbin", "usr/sbin"),
            ("/var/run", "/run"),
        ),
        ("/run/nvidia-persistenced/socket",),
        all_plain=True,
    ),
}
