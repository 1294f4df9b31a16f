"""Stand-in for the driver container (`nvidia-driver`): the room `lab/driver`, under the name the images' table uses."""

from ..driver import entrypoint as entrypoint
from ..driver import extra as extra
from ..driver import run as run
from ..driver import version_of as version_of
