"""`python -m groundplane.lab.onnode PROGRAM ARGS...`."""

import sys

from . import main

if len(sys.argv) < 2:
    sys.exit("usage: python -m groundplane.lab.onnode PROGRAM [ARGS...]")
sys.exit(main(sys.argv[1:]))
