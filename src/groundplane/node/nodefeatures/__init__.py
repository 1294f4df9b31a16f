"""The few node features that the operator needs, with the names of node feature discovery (NFD), whose place it takes.

One program beside each kubelet is worker and master in one. As worker it finds what the machine is (``machine``) and
what other programs of the node leave in features.d (``local``), and offers it as a NodeFeature object (``worker``). As
master, of its own node only, it turns the NodeFeature objects of this node into labels (``requests``, ``labels``,
``record``). Where NFD itself is at work it leaves everything to that (``rivals``). ``loop`` puts these together.

Why no central master, as NFD has: what a node's labels should be depends on that node's objects alone, so nothing needs
to see more than one. A node labels itself as fast in a cluster of 5,000 as of five, nothing has to be elected, scaled
or restarted, a fault stays on one node, and the API server sends each object to the one watcher that wants it. The
price is that a node's program may patch nodes; NFD's master may, too, and a node's pods share one service account
either way. It costs two watches a node, next to the kubelet's own dozen.
"""
