"""What groups cost that only live: 100 of 10 members, each with a heartbeat every three seconds."""

import asyncio
import itertools

from bench.group_members import beat_steadily, joined_members
from bench.kafka_load import KafkaLoad
from bench.load import NotSupported
from bench.measures import Effort, Metric, Samples, SharedRow
from bench.servers import Running

GROUPS = 100
MEMBERS = 10
INTERVAL_S = 3.0  # what clients do by default

CPU = Metric(
    name="heartbeats.cpu",
    title=f"server CPU, {GROUPS} groups of {MEMBERS} members that rest",
    unit="% of a core",
    higher_is_better=False,
)

_runs = itertools.count(1)


def measure(running: Running, effort: Effort) -> Samples:
    if not isinstance(running.load, KafkaLoad):
        raise NotSupported("it has no consumer groups")
    used_s = asyncio.run(_used_s(running, running.load.port, effort))
    yield CPU.name, 100 * used_s / effort.heartbeat_s


async def _used_s(running: Running, port: int, effort: Effort) -> float:
    run = next(_runs)
    groups = [f"bench-rest-{run}-{number}" for number in range(GROUPS)]
    async with joined_members(port, groups, MEMBERS) as members:
        await beat_steadily(members, INTERVAL_S, INTERVAL_S)  # once round: all is warm
        before_s = running.cpu_s()
        await beat_steadily(members, INTERVAL_S, effort.heartbeat_s)
        return running.cpu_s() - before_s


ROW = SharedRow("heartbeats", (CPU,), measure)
