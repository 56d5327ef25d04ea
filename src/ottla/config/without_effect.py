"""Settings of Kafka that are accepted, checked and shown, but change nothing here, and why.

Tools copy a topic's settings as they are: MirrorMaker, kafka-configs and Terraform would fail on
one that is refused. A name that Kafka does not know either is still an error.
"""

from typing import Final

_DURABILITY: Final = "the setting durability decides when records are synced."
_NO_TIERS: Final = "there is no tiered storage."
_NO_THROTTLE: Final = "replication.catchup.bytes.per.s throttles all replicas that are not in sync."
_NO_STREAMS_GROUPS: Final = "groups of the Streams protocol are not served."

WITHOUT_EFFECT: Final = {
    # Topics
    "compression.lz4.level": "lz4 is compressed at the level of its fast mode.",
    "file.delete.delay.ms": "files are removed at once; a reader keeps the file it has open.",
    "flush.messages": _DURABILITY,
    "flush.ms": _DURABILITY,
    "follower.replication.throttled.replicas": _NO_THROTTLE,
    "leader.replication.throttled.replicas": _NO_THROTTLE,
    "local.retention.bytes": _NO_TIERS,
    "local.retention.ms": _NO_TIERS,
    "preallocate": "files grow as they are written.",
    "remote.log.copy.disable": _NO_TIERS,
    "remote.log.delete.on.disable": _NO_TIERS,
    "remote.storage.enable": _NO_TIERS,
    "segment.index.bytes": "index files are not allocated beforehand, and are as large as needed.",
    # Groups
    "consumer.assignment.interval.ms": "an assignment is made as soon as it is needed.",
    "share.assignment.interval.ms": "an assignment is made as soon as it is needed.",
    "streams.assignment.interval.ms": _NO_STREAMS_GROUPS,
    "streams.heartbeat.interval.ms": _NO_STREAMS_GROUPS,
    "streams.initial.rebalance.delay.ms": _NO_STREAMS_GROUPS,
    "streams.num.standby.replicas": _NO_STREAMS_GROUPS,
    "streams.session.timeout.ms": _NO_STREAMS_GROUPS,
}
