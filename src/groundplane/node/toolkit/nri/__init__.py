"""The toolkit as an NRI plugin: the container runtime asks it what a container gets (contracts/toolkit-cdi.md 7)."""
