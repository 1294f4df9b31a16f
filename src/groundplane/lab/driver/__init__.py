"""NVIDIA's driver container, played on a simulated host: replaced by nothing, the image stays NVIDIA's own.

It does to the host's files what the real one does to a machine (contracts/driver-lifecycle.md 6), and finds there what
can go wrong: `driverfaults.py` lists how. `container.py` knows the verbs and their order, `install.py` what an
installation consists of, `packages.py` what the distribution's repositories have, `modules.py` loading and unloading,
`daemons.py` the processes beside the modules, `sidecars.py` the containers beside the driver's, `toolkit.py`
OpenShift's way of building.
"""

from .container import run as run
from .image import version_of as version_of
from .sidecars import extra as extra
from .toolkit import entrypoint as entrypoint
