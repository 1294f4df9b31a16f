"""The container toolkit: it makes a node's containers see GPUs (contracts/toolkit-cdi.md 4, 5 and 7).

main      the operand's program and its sequence    options   what it is asked to do, as whole settings
lock      there is one toolkit on a node            install   the host's programs, put in place as a whole
config    the config.toml that they read            specs     the CDI specs that are kept while the toolkit waits
runtimes  the container runtime's configuration     restart   that the runtime reads it
nri       the toolkit as an NRI plugin              settings  what these rooms tell each other
"""
