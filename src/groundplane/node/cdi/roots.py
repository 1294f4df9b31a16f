"""Where the driver's files and its device nodes are: as the generating process sees them, and as the host does.

Discovery runs on the process' paths; what stands in a spec are the host's (contracts/toolkit-cdi.md 3.7).
"""

from typing import Final

import msgspec

from ..process import Process

NULL_DEVICES: Final = "GROUNDPLANE_NULL_DEVICES"
"""Set to ``true`` on machines whose GPUs are simulated: every node in a spec is the null device under another name, and
ordinary files count as device nodes."""


def simulated(process: Process) -> bool:
    """Whether the machine's GPUs are simulated (:data:`NULL_DEVICES`)."""
    return process.env.get(NULL_DEVICES) == "true"


class Roots(msgspec.Struct, frozen=True):
    """The driver root and the dev root, each as this process sees it and as the host does, without a slash at the end.

    The root itself is an empty text.
    """

    driver: str
    dev: str
    host_driver: str
    host_dev: str

    @classmethod
    def of(cls, driver: str, dev: str = "", *, host_driver: str | None = None, host_dev: str | None = None) -> "Roots":
        """Roots from paths as options give them: the dev root is the driver root, and the host's are the process', if
        nothing else is said."""
        here, there = driver.rstrip("/"), (driver if host_driver is None else host_driver).rstrip("/")
        dev_here = dev.rstrip("/") if dev else here
        if host_dev is None:
            host_dev = dev_here if host_driver is None else there
        return cls(here, dev_here, there, host_dev.rstrip("/"))
