"""`nvidia-ctk`: the toolkit's command line, as upstream has it (contracts/toolkit-cdi.md 3.9, 5.8)."""
