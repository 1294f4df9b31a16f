"""``python -m groundplane`` is the ``groundplane`` executable."""

from .cli.main import main

main()
