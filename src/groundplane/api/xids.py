"""The catalogue of Xid errors: a short text and what to do, for each number (contracts/mig-exporter-validator.md 8).

Data, for the exporter and for the doctor. The texts are our own; the actions are NVIDIA's catalogue's. Counting errors
and finding them in the kernel's log are left to the rooms that do.
"""

import enum
from typing import Final, NamedTuple


class Action(enum.StrEnum):
    """What is to be done at once."""

    IGNORE = "ignore"
    RESTART_APPLICATION = "restart the application"
    RESET_GPU = "reset the GPU"
    RESTART_NODE = "restart the node"
    RESTART_VM = "restart the virtual machine"
    UPDATE = "update software and firmware"
    CHECK_MECHANICS = "check power and mechanics"
    WORKFLOW = "look at the errors beside it"
    SUPPORT = "contact support"
    NONE = "none stated"


class Xid(NamedTuple):
    """An entry of the catalogue."""

    action: Action
    text: str


UNKNOWN: Final = "Unknown Error"


def text(code: int) -> str:
    """The short text of an Xid; of 0, which stands for none, that there was none."""
    if code == 0:
        return "No Error"
    found = XIDS.get(code)
    return found.text if found is not None else UNKNOWN


_TEXTS: Final[dict[Action, dict[int, str]]] = {
    Action.IGNORE: {
        14: "Unused",
        37: "Driver firmware error",
        38: "Driver firmware error",
        43: "GPU stopped processing after an application fault",
        44: "Graphics engine fault during context switch",
        63: "Row remapping or page retirement recorded",
        66: "Driver did something that is not allowed",
        67: "Driver did something that is not allowed",
        92: "High rate of single-bit ECC errors",
        93: "InfoROM was not updated in time",
        106: "SMBPBI test message",
        107: "SMBPBI test message (quiet)",
        108: "Clock fault",
        121: "C2C link corrected an error",
        137: "NVLink privilege fault of a fabric-connected GPU",
        141: "Fault buffer overflow",
        152: "Reserved",
        153: "GPU configuration changed while running",
        157: "Reserved",
        160: "Channel retirement recorded",
        161: "Channel retirement is full",
    },
    Action.RESTART_APPLICATION: {
        8: "GPU stopped answering in time",
        11: "Invalid or corrupt commands",
        13: "Graphics engine exception",
        25: "Invalid display or channel setting",
        31: "GPU memory page fault",
        32: "Invalid or corrupt push buffer",
        39: "Copy engine or security exception",
        40: "Copy engine exception",
        41: "Copy engine exception",
        60: "Video processor exception",
        68: "Video decoder 0 exception",
        69: "Graphics engine class error",
        70: "Copy engine 3 exception",
        71: "Copy engine 4 exception",
        72: "Copy engine 5 exception",
        75: "Copy engine 6 exception",
        76: "Copy engine 7 exception",
        77: "Copy engine 8 exception",
        80: "Corrupt data sent to the GPU",
        82: "JPEG engine 0 exception",
        83: "Video decoder 1 exception",
        84: "Video decoder 2 exception",
        85: "Copy engine 9 exception",
        86: "Optical flow engine exception",
        88: "Video decoder 3 exception",
        89: "Video decoder 4 exception",
        94: "Contained memory error",
        96: "Video decoder 5 exception",
        97: "Video decoder 6 exception",
        98: "Video decoder 7 exception",
        99: "JPEG engine 1 exception",
        100: "JPEG engine 2 exception",
        101: "JPEG engine 3 exception",
        102: "JPEG engine 4 exception",
        103: "JPEG engine 5 exception",
        104: "JPEG engine 6 exception",
        105: "JPEG engine 7 exception",
        126: "Copy engine exception in a virtual GPU's context",
        127: "Copy engine exception in a virtual GPU's context",
        128: "Copy engine exception in a virtual GPU's context",
        129: "Copy engine exception in a virtual GPU's context",
        130: "Copy engine exception in a virtual GPU's context",
        131: "Copy engine exception in a virtual GPU's context",
        132: "Copy engine exception in a virtual GPU's context",
        133: "Copy engine exception in a virtual GPU's context",
        134: "Copy engine exception in a virtual GPU's context",
        135: "Copy engine exception in a virtual GPU's context",
        139: "Optical flow engine 1 exception",
    },
    Action.RESET_GPU: {
        46: "GPU stopped processing",
        62: "Internal micro-controller halted",
        64: "Row remapping or page retirement could not be recorded",
        95: "Uncontained memory error",
        109: "Context switch timed out",
        110: "Security fault",
        119: "GPU system processor did not answer in time",
        120: "GPU system processor error",
        136: "Link training failed",
        140: "Unrecovered ECC error",
        143: "GPU could not be initialised",
        155: "NVLink flow control error",
        156: "Resource retirement recorded",
        158: "GPU fatal time-out",
    },
    Action.RESTART_NODE: {79: "GPU has fallen off the bus"},
    Action.RESTART_VM: {151: "Key rotation failed in a confidential virtual machine"},
    Action.UPDATE: {78: "Virtual GPU could not be started"},
    Action.CHECK_MECHANICS: {54: "Auxiliary power is not connected to the board"},
    Action.WORKFLOW: {
        45: "Clean-up after an earlier error",
        48: "Double-bit ECC error",
        74: "NVLink error",
        144: "NVLink SAW error",
        145: "NVLink RLW error",
        146: "NVLink TLW error",
        147: "NVLink TREX error",
        148: "NVLink NVLPW control error",
        149: "NVLink NETIR error",
        150: "NVLink MSE error",
        154: "Recovery action of the GPU has changed",
        159: "C2C link is down",
    },
    Action.SUPPORT: {
        1: "Invalid or corrupt push buffer stream",
        2: "Invalid or corrupt push buffer stream",
        3: "Invalid or corrupt push buffer stream",
        4: "Invalid or corrupt push buffer stream",
        5: "Unused",
        6: "Invalid or corrupt push buffer stream",
        7: "Invalid or corrupt push buffer address",
        9: "Driver error while programming the GPU",
        10: "Unused",
        12: "Driver error while handling a GPU exception",
        15: "Unused",
        16: "Display engine hung",
        17: "Unused",
        18: "Bus mastering is off in PCI configuration space",
        19: "Display engine error",
        20: "Invalid or corrupt video decoder commands",
        21: "Invalid or corrupt video decoder commands",
        22: "Invalid or corrupt video decoder commands",
        23: "Invalid or corrupt video decoder commands",
        24: "Graphics engine semaphore timed out",
        26: "Frame buffer timed out",
        27: "Unknown error of the video processor",
        28: "Unknown error of the video processor",
        29: "Unknown error of the video processor",
        30: "Semaphore access error of the GPU",
        33: "Internal micro-controller error",
        34: "Video processor exception",
        35: "Video processor exception",
        36: "Video processor exception",
        42: "Video processor exception",
        47: "Video processor exception",
        49: "Unused",
        50: "Unused",
        51: "Unused",
        52: "Unused",
        53: "Unused",
        55: "Unused",
        56: "Display engine error",
        57: "Error in programming the video memory interface",
        58: "Unstable video memory interface or GPU error",
        59: "Internal micro-controller error",
        61: "Internal micro-controller breakpoint or warning",
        65: "Video processor exception",
        73: "Video encoder 2 exception",
        81: "VGA subsystem error",
        87: "Reserved",
        90: "Reserved",
        91: "Reserved",
        111: "Display bundle error",
        112: "Display supervisor error",
        113: "DisplayPort link training error",
        114: "Display pipeline underflow",
        115: "Display core channel error",
        116: "Display window channel error",
        117: "Display cursor channel error",
        118: "Display pixel pipeline error",
        122: "SPI read of the board's memory failed",
        123: "SPI write of the board's memory failed",
        124: "SPI erase of the board's memory failed",
        125: "InfoROM file system error",
        138: "Reserved",
        142: "NVENC 3 exception",
    },
    Action.NONE: {
        162: "Power smoothing capability regained",
        163: "Power smoothing capability lost",
        164: "Power smoothing is at the end of its life",
        165: "Power smoothing warning",
        166: "Reserved",
        167: "PCIe fatal time-out",
        168: "Errors found in write-protected memory",
        169: "Firmware of the internal micro-controller halted",
        170: "Interrupt in confidential computing mode",
        171: "Companion of a double-bit ECC error (DRAM)",
        172: "Companion of a double-bit ECC error (SRAM)",
    },
}

XIDS: Final[dict[int, Xid]] = {
    code: Xid(action, about) for action, entries in _TEXTS.items() for code, about in sorted(entries.items())
}
"""All Xids of the catalogue by number."""
