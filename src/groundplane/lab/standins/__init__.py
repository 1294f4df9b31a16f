"""Stand-ins for programs that the lab runs until the real ones exist, one program a file.

Each does what others can see of the real program (files, labels, sockets, exit codes, log lines) on the simulated host,
and fails where the real one would. The first line of each file names what replaces it.
"""
