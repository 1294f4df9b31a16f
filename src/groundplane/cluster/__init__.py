"""How we talk to Kubernetes: client, informer, work queue, apply and prune, leader lease, events.

Nothing here knows of GPUs; names that are NVIDIA's come from ``api/names.py``. The modules, from the bottom up:
``kinds`` (which resources there are), ``errors`` (what the API server may answer), ``config`` (where it is and who we
are), ``client`` (one request), ``views`` (what we keep of an object), ``informer`` (a live copy of a collection),
``queue`` (keys that want work), ``apply`` (from wanted and live objects to writes), ``lease`` (one leader) and
``events`` (what a person reads in ``kubectl describe``).
"""
