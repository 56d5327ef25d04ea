"""Readiness of a broker: whether clients should use it, as /readyz says."""

from dataclasses import dataclass
from enum import StrEnum

from ottla.broker.defects import Defects
from ottla.cluster.state import ClusterState
from ottla.replication.replicas import Replicas
from ottla.settings import Settings
from ottla.storage.flusher import Flusher
from ottla.storage.log_dir import LogDir


class Phase(StrEnum):
    """Phases of a broker, as /readyz shows them."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(slots=True, kw_only=True)
class Readiness:
    """Owner of the broker's phase."""

    defects: Defects
    log_dir: LogDir
    state: ClusterState
    settings: Settings
    flusher: Flusher
    replicas: Replicas
    phase: Phase = Phase.STARTING

    def obstacle(self) -> str | None:
        """The reason why clients should use another broker; None while writes are acknowledged."""
        if self.defects.first is not None:
            return "a defect has ended the broker"
        if self.phase is not Phase.SERVING:
            return f"the broker is {self.phase}"
        if self.log_dir.offline_reason is not None:
            return self.log_dir.offline_reason
        if not self.state.is_registered:
            return "the cluster considers this broker dead: it is registering again"
        stall_s = self.settings.broker.readiness_stall_ms / 1000
        if (syncing_s := self.flusher.unfinished_s) > stall_s:
            return f"the disk has been syncing for {syncing_s:.0f} s, nothing is acknowledged"
        if (behind_s := self.replicas.behind_s) > stall_s:
            return f"the partitions have not followed the cluster's changes for {behind_s:.0f} s"
        return None
