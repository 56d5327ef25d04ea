"""The etcd store's latency and cost, one call at a time, against an etcd that runs already.

    python -m bench.etcd_store etcd://127.0.0.1:2379/bench

Writes one key below the prefix, and removes it in the end.
"""

import argparse
import asyncio
import contextlib
import resource
import statistics
import threading
import time
from collections.abc import Sequence

import uvloop

from ottla.cluster.etcd_address import EtcdAddress
from ottla.cluster.store import Compare, Delete, Put, Revision
from ottla.cluster.store_etcd import EtcdStore

_KEY = "key"
_VALUE = b"x" * 200
_WARM_UP = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", type=EtcdAddress.parse)
    parser.add_argument("--calls", type=int, default=3000)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(options.url, options.calls))


async def measure(address: EtcdAddress, calls: int) -> None:
    store = await EtcdStore.open(address, timeout_s=30.0)
    try:
        revision = await store.commit([Put(_KEY, _VALUE)])
        _, revision = await commits(store, revision, _WARM_UP)
        began_s = time.process_time()
        took_ms, revision = await commits(store, revision, calls)
        cpu_ms = (time.process_time() - began_s) * 1000 / calls
        print(f"compare-and-set: {summary(took_ms)}, {cpu_ms:.2f} ms of CPU a call")
        print(f"commit to watch: {summary(await watched(store, revision, calls))}")
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory {peak_mb:.0f} MB, {threading.active_count()} thread(s)")
        await store.commit([Delete(_KEY)])
    finally:
        await store.close()


async def commits(store: EtcdStore, revision: Revision, count: int) -> tuple[list[float], Revision]:
    """Milliseconds of each commit that compares the revision of the one before."""
    took_ms = []
    for _ in range(count):
        began_s = time.perf_counter()
        revision = await store.commit([Put(_KEY, _VALUE)], [Compare(_KEY, revision)])
        took_ms.append((time.perf_counter() - began_s) * 1000)
    return took_ms, revision


async def watched(store: EtcdStore, after: Revision, count: int) -> list[float]:
    """Milliseconds from sending a commit until a watch reports its revision."""
    took_ms = []
    async with contextlib.aclosing(store.watch("", after)) as watch:
        for number in range(_WARM_UP + count):
            began_s = time.perf_counter()
            sent = asyncio.create_task(store.commit([Put(_KEY, _VALUE)]))
            seen = (await anext(watch)).revision
            if number >= _WARM_UP:
                took_ms.append((time.perf_counter() - began_s) * 1000)
            assert await sent == seen, "another process uses the prefix"
    return took_ms


def summary(took_ms: Sequence[float]) -> str:
    percentiles = statistics.quantiles(took_ms, n=100)
    return f"p50 {percentiles[49]:.2f} ms, p99 {percentiles[98]:.2f} ms"


if __name__ == "__main__":
    main()
