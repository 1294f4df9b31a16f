"""The toolkit as an NRI plugin: the container runtime asks it what a container gets (contracts/toolkit-cdi.md 7).

plugin     connects, and connects again         session    one connection
service    what is answered                     injection  which devices a container gets (pure)
ttrpc      requests and answers on a channel    mux        channels over a socket
"""
