"""The doctor as a service: while the operator leads, it tells in metrics and Events which layer of which node fails.

Off unless asked for, as it reads more than reconciliation does; with it off, nothing here but this line is loaded. What
is broken is the doctor's to say (``diagnose``); here is when to look (``loop``), what to read for it at little cost
(``reading``), what of a verdict is told (``picture``), what of that is news (``news``), and the metrics (``figures``).
"""
