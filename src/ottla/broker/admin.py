"""What administrators ask."""

from collections.abc import Mapping
from typing import Final

from ottla.broker.late_handlers import Answering, LateHandlers
from ottla.broker.metadata_changes import Commits
from ottla.broker.settings import Settings
from ottla.broker.topic_creation import TopicCreation
from ottla.cluster.state import ClusterState
from ottla.model import BrokerId
from ottla.protocol.api import ApiKey
from ottla.replication.replicas import Replicas

ADMIN_KEYS: Final = (
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_RECORDS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.DESCRIBE_QUORUM,
)


class Admin(LateHandlers):
    def __init__(
        self,
        state: ClusterState,
        replicas: Replicas,
        settings: Settings,
        commits: Commits,
        creation: TopicCreation,
        node_id: BrokerId,
    ) -> None:
        super().__init__()
        self._state = state
        self._replicas = replicas
        self._settings = settings
        self._commits = commits
        self._creation = creation
        self._node_id = node_id

    def _make_handlers(self) -> Mapping[ApiKey, Answering]:
        from ottla.broker.handlers import cluster, configs, metadata, topics  # noqa: PLC0415

        state, replicas, settings = self._state, self._replicas, self._settings
        commits = self._commits
        return {
            ApiKey.CREATE_TOPICS: topics.CreateTopics(self._creation, settings),
            ApiKey.DELETE_TOPICS: topics.DeleteTopics(state, commits, settings),
            ApiKey.CREATE_PARTITIONS: topics.CreatePartitions(state, commits, settings, replicas),
            ApiKey.DELETE_RECORDS: topics.DeleteRecords(replicas),
            ApiKey.DESCRIBE_CONFIGS: configs.DescribeConfigs(state, settings, self._node_id),
            ApiKey.ALTER_CONFIGS: configs.AlterConfigs(commits, settings),
            ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.IncrementalAlterConfigs(commits, settings),
            ApiKey.LIST_CONFIG_RESOURCES: configs.ListConfigResources(state),
            ApiKey.DESCRIBE_CLUSTER: cluster.DescribeCluster(state),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.DescribeTopicPartitions(state, replicas),
            ApiKey.DESCRIBE_LOG_DIRS: cluster.DescribeLogDirs(replicas),
            ApiKey.DESCRIBE_QUORUM: cluster.DescribeQuorum(state),
        }
