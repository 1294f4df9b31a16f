"""The CUDA driver's result codes: their names, and what each one means for who runs the machine."""

from collections.abc import Mapping
from typing import Final, NamedTuple

_MPS: Final = "see the log of the MPS control daemon on this node"
_RESET: Final = "look for NVRM: Xid in the kernel's log; the GPU may need a reset, or the node a restart"
_OURS: Final = "the check's own program is at fault, or the driver's: report it with the driver's version"


class Result(NamedTuple):
    """A code's name, and what it means and what to look at."""

    name: str
    meaning: str


RESULTS: Final[Mapping[int, Result]] = {
    1: Result("CUDA_ERROR_INVALID_VALUE", f"a call had a wrong argument; {_OURS}"),
    2: Result("CUDA_ERROR_OUT_OF_MEMORY", "the GPU's memory is used up: see who uses it with nvidia-smi"),
    3: Result("CUDA_ERROR_NOT_INITIALIZED", f"the library was not initialised; {_OURS}"),
    4: Result("CUDA_ERROR_DEINITIALIZED", "the driver is being shut down"),
    34: Result(
        "CUDA_ERROR_STUB_LIBRARY",
        "the library is the one to link with, not the driver's: the container runtime has not brought the driver's, or "
        "the image's own comes first",
    ),
    46: Result(
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "the GPU takes no further process: its compute mode is exclusive or prohibited (nvidia-smi -q -d COMPUTE)",
    ),
    100: Result(
        "CUDA_ERROR_NO_DEVICE",
        "no GPU can be used: the container was given none, its device nodes are missing or denied to it, or the "
        "driver's kernel module is not loaded",
    ),
    101: Result("CUDA_ERROR_INVALID_DEVICE", "there is no such GPU, or its MIG device cannot be used"),
    102: Result("CUDA_ERROR_DEVICE_NOT_LICENSED", "the virtual GPU has no licence: see nvidia-smi -q, nvidia-gridd"),
    200: Result("CUDA_ERROR_INVALID_IMAGE", f"the driver cannot read the check's program; {_OURS}"),
    201: Result("CUDA_ERROR_INVALID_CONTEXT", f"the GPU's context is not valid; {_RESET}"),
    205: Result("CUDA_ERROR_MAP_FAILED", f"memory could not be mapped; {_RESET}"),
    209: Result("CUDA_ERROR_NO_BINARY_FOR_GPU", "the driver is too old for this GPU, or the GPU too old for the check"),
    214: Result(
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "the GPU's memory had an error that could not be corrected: reset the GPU; if it comes again, replace it",
    ),
    218: Result("CUDA_ERROR_INVALID_PTX", f"the driver's compiler refuses the check's program; {_OURS}"),
    220: Result("CUDA_ERROR_NVLINK_UNCORRECTABLE", "NVLink had an error that could not be corrected: check the links"),
    221: Result(
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "libnvidia-ptxjitcompiler.so.1 is not in the container: the driver's installation is not whole, or the "
        "container runtime brings a part of it only",
    ),
    222: Result("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the driver is too old: it must support CUDA 9.0 or later"),
    223: Result("CUDA_ERROR_JIT_COMPILATION_DISABLED", "compiling is switched off (CUDA_DISABLE_PTX_JIT)"),
    226: Result("CUDA_ERROR_CONTAINED", f"the GPU contained a memory error, which ended this program; {_RESET}"),
    302: Result("CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "the driver's libraries are of different versions"),
    303: Result("CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "a library of the driver could not be loaded"),
    304: Result(
        "CUDA_ERROR_OPERATING_SYSTEM",
        "the operating system refused something: are /dev/nvidia-uvm and /dev/nvidiactl in the container, and allowed?",
    ),
    400: Result("CUDA_ERROR_INVALID_HANDLE", f"a handle is not valid; {_OURS}"),
    500: Result("CUDA_ERROR_NOT_FOUND", f"something that was named is not there; {_OURS}"),
    600: Result("CUDA_ERROR_NOT_READY", "the GPU has not finished"),
    700: Result("CUDA_ERROR_ILLEGAL_ADDRESS", f"the GPU read or wrote where there is no memory; {_RESET}"),
    701: Result("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", f"the GPU has not the resources for the check; {_OURS}"),
    702: Result("CUDA_ERROR_LAUNCH_TIMEOUT", "the GPU took too long: a display's watchdog, or the GPU hangs"),
    709: Result("CUDA_ERROR_CONTEXT_IS_DESTROYED", f"the GPU's context is gone; {_RESET}"),
    714: Result("CUDA_ERROR_HARDWARE_STACK_ERROR", f"the GPU's stack is damaged; {_RESET}"),
    715: Result("CUDA_ERROR_ILLEGAL_INSTRUCTION", f"the GPU met an instruction that it does not know; {_RESET}"),
    716: Result("CUDA_ERROR_MISALIGNED_ADDRESS", f"the GPU met a misaligned address; {_RESET}"),
    717: Result("CUDA_ERROR_INVALID_ADDRESS_SPACE", f"the GPU met an address of another space; {_RESET}"),
    718: Result("CUDA_ERROR_INVALID_PC", f"the GPU's program counter went astray; {_RESET}"),
    719: Result("CUDA_ERROR_LAUNCH_FAILED", f"the GPU failed while it computed; {_RESET}"),
    800: Result("CUDA_ERROR_NOT_PERMITTED", "it is not permitted: does the container's security profile forbid it?"),
    801: Result("CUDA_ERROR_NOT_SUPPORTED", "this GPU or driver cannot do it"),
    802: Result(
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the machine is not ready: with NVSwitches the fabric manager must run (systemctl status nvidia-fabricmanager) "
        "and the GPUs must have joined the fabric",
    ),
    803: Result(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel module and library are of different versions: the driver was updated while it was in use, or the image "
        "has a library of its own; reload the module or restart the node",
    ),
    804: Result(
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the image's CUDA compatibility library (forward compatibility) does not go with this GPU, which is no data "
        "centre GPU: use an image for the driver's CUDA version, or a newer driver",
    ),
    805: Result("CUDA_ERROR_MPS_CONNECTION_FAILED", f"there is no connection to the MPS server; {_MPS}"),
    806: Result("CUDA_ERROR_MPS_RPC_FAILURE", f"the MPS server did not answer; {_MPS}"),
    807: Result("CUDA_ERROR_MPS_SERVER_NOT_READY", f"the MPS server is not ready; {_MPS}"),
    808: Result("CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", f"the MPS server takes no further client; {_MPS}"),
    809: Result("CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", f"the MPS server takes no further connection; {_MPS}"),
    810: Result("CUDA_ERROR_MPS_CLIENT_TERMINATED", f"the MPS server has ended this client; {_MPS}"),
    999: Result(
        "CUDA_ERROR_UNKNOWN",
        "the driver says no more; look for NVRM: Xid in the kernel's log (79: the GPU has fallen off the bus), and "
        "whether the module nvidia_uvm is loaded",
    ),
}

NO_DEVICE: Final = 100
ECC_UNCORRECTABLE: Final = 214
NVLINK_UNCORRECTABLE: Final = 220
SYSTEM_NOT_READY: Final = 802
DRIVER_MISMATCH: Final = 803
UNKNOWN: Final = 999


def result(code: int) -> Result:
    """What a code means; also of one that is not in the table."""
    return RESULTS.get(code) or Result(f"CUDA_ERROR_{code}", "this code is newer than this program; see CUDA's manual")
