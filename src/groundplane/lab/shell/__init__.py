"""The lab's shell: enough of POSIX sh to run the scripts that pods carry, without processes.

`parser` turns text into a tree, `interpreter` runs it inside a container's context, `utilities` holds the small
commands of a base image (`cat`, `ls`, `[`, `sleep` ...). What the shell cannot do is a syntax error that says so.
Job control and arithmetic are left out.
"""
