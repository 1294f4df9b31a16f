"""The lab with real node programs: bare GPU nodes to all validated: `python -m bench.lab [NODES]`."""

import argparse
import asyncio
import statistics
import time

from groundplane.lab import cluster, demo, layers, nodes, resources

from . import table

ROUNDS = 3
LIMIT_S = 5.0


async def _round(count: int, speed: float) -> float:
    async with cluster.Lab(nodes.generate(count), speed=speed) as lab:
        began = time.monotonic()
        await lab.apply([demo.data("guide-baseline.yaml")])

        def validated() -> bool:
            rows = layers.judge(lab.api.list(resources.NODES)["items"], lab.api.list(resources.PODS)["items"])
            return len(rows) == count and all(row.healthy and row.gpus for row in rows)

        await lab.wait_until(validated, timeout_s=60, what=f"{count} validated nodes")
        await lab.wait_ready()
        return time.monotonic() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[8])
    parser.add_argument("--speed", type=float, default=cluster.DEFAULT_SPEED)
    arguments = parser.parse_args()
    rows = []
    for count in arguments.nodes:
        times = [asyncio.run(_round(count, arguments.speed)) for _ in range(ROUNDS)]
        middle = statistics.median(times)
        rows.append([count, middle, min(times), max(times), LIMIT_S, middle / LIMIT_S])
    table.show(
        f"lab: bare GPU nodes to all validated, clock x{arguments.speed:g} ({table.machine()})",
        ["nodes", "median s", "min s", "max s", "limit s", "ratio"],
        rows,
    )


if __name__ == "__main__":
    main()
