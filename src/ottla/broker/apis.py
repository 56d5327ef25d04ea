"""Every request that this broker serves, one row each, and the handlers, made on first use.

A handler is a class in `ottla.broker.handlers` that is made with the broker's Services and called
with a decoded request and its RequestContext. It returns the response message, or a coroutine or
Deferred of it. Produce and Fetch take raw frames instead (`take`), for they are the hot path.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ottla.broker.services import RequestContext, Services
from ottla.protocol.api import ApiKey

Handler = Callable[[Any, RequestContext], Any]

HANDLERS: Final = {
    ApiKey.PRODUCE: "produce:Produce",
    ApiKey.FETCH: "fetch:Fetch",
    ApiKey.API_VERSIONS: "api_versions:ApiVersions",
    # Before clients write or read
    ApiKey.METADATA: "metadata:Metadata",
    ApiKey.LIST_OFFSETS: "offsets:ListOffsets",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "offsets:OffsetForLeaderEpoch",
    ApiKey.FIND_COORDINATOR: "coordination:FindCoordinator",
    ApiKey.INIT_PRODUCER_ID: "producers:InitProducerId",
    ApiKey.DESCRIBE_PRODUCERS: "producers:DescribeProducers",
    # Groups
    ApiKey.JOIN_GROUP: "classic_groups:JoinGroup",
    ApiKey.SYNC_GROUP: "classic_groups:SyncGroup",
    ApiKey.HEARTBEAT: "classic_groups:Heartbeat",
    ApiKey.LEAVE_GROUP: "classic_groups:LeaveGroup",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "consumer_groups:ConsumerGroupHeartbeat",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "consumer_groups:ConsumerGroupDescribe",
    ApiKey.OFFSET_COMMIT: "group_offsets:OffsetCommit",
    ApiKey.OFFSET_FETCH: "group_offsets:OffsetFetch",
    ApiKey.OFFSET_DELETE: "group_offsets:OffsetDelete",
    ApiKey.DESCRIBE_GROUPS: "group_admin:DescribeGroups",
    ApiKey.LIST_GROUPS: "group_admin:ListGroups",
    ApiKey.DELETE_GROUPS: "group_admin:DeleteGroups",
    # Share groups
    ApiKey.SHARE_GROUP_HEARTBEAT: "share_groups:ShareGroupHeartbeat",
    ApiKey.SHARE_GROUP_DESCRIBE: "share_groups:ShareGroupDescribe",
    ApiKey.SHARE_FETCH: "share_fetch:ShareFetch",
    ApiKey.SHARE_ACKNOWLEDGE: "share_fetch:ShareAcknowledge",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "share_group_offsets:DescribeShareGroupOffsets",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "share_group_offsets:AlterShareGroupOffsets",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "share_group_offsets:DeleteShareGroupOffsets",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "share_state:InitializeShareGroupState",
    ApiKey.READ_SHARE_GROUP_STATE: "share_state:ReadShareGroupState",
    ApiKey.WRITE_SHARE_GROUP_STATE: "share_state:WriteShareGroupState",
    ApiKey.DELETE_SHARE_GROUP_STATE: "share_state:DeleteShareGroupState",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "share_state:ReadShareGroupStateSummary",
    # Transactions
    ApiKey.ADD_PARTITIONS_TO_TXN: "transactions:AddPartitionsToTxn",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactions:AddOffsetsToTxn",
    ApiKey.END_TXN: "transactions:EndTxn",
    ApiKey.TXN_OFFSET_COMMIT: "transactional_offsets:TxnOffsetCommit",
    ApiKey.WRITE_TXN_MARKERS: "transaction_admin:WriteTxnMarkers",
    ApiKey.DESCRIBE_TRANSACTIONS: "transaction_admin:DescribeTransactions",
    ApiKey.LIST_TRANSACTIONS: "transaction_admin:ListTransactions",
    # Administration
    ApiKey.CREATE_TOPICS: "topics:CreateTopics",
    ApiKey.DELETE_TOPICS: "topics:DeleteTopics",
    ApiKey.CREATE_PARTITIONS: "topics:CreatePartitions",
    ApiKey.DELETE_RECORDS: "topics:DeleteRecords",
    ApiKey.DESCRIBE_CONFIGS: "configs:DescribeConfigs",
    ApiKey.ALTER_CONFIGS: "configs:AlterConfigs",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "configs:IncrementalAlterConfigs",
    ApiKey.LIST_CONFIG_RESOURCES: "configs:ListConfigResources",
    ApiKey.DESCRIBE_CLUSTER: "cluster:DescribeCluster",
    ApiKey.UNREGISTER_BROKER: "placement:UnregisterBroker",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "metadata:DescribeTopicPartitions",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "cluster:AlterReplicaLogDirs",
    ApiKey.DESCRIBE_LOG_DIRS: "cluster:DescribeLogDirs",
    ApiKey.DESCRIBE_QUORUM: "cluster:DescribeQuorum",
    ApiKey.ELECT_LEADERS: "placement:ElectLeaders",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "placement:AlterPartitionReassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "placement:ListPartitionReassignments",
    ApiKey.DESCRIBE_ACLS: "acls:DescribeAcls",
    ApiKey.CREATE_ACLS: "acls:CreateAcls",
    ApiKey.DELETE_ACLS: "acls:DeleteAcls",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "quotas:DescribeClientQuotas",
    ApiKey.ALTER_CLIENT_QUOTAS: "quotas:AlterClientQuotas",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "scram:DescribeUserScramCredentials",
    # Ottla's own: PRIVATE in `protocol.api`
    ApiKey.ADMIN_QUERY: "admin:AdminQuery",
}


def handler_class(key: ApiKey) -> type[Any]:
    """The class that serves an API, imported now."""
    module, name = HANDLERS[key].split(":")
    found: type[Any] = getattr(import_module(f"ottla.broker.handlers.{module}"), name)
    return found


class Handlers(dict[ApiKey, Handler]):
    """The handlers of one broker: each is imported and made at its first request."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def __missing__(self, key: ApiKey) -> Handler:
        made: Handler = handler_class(key)(self._services)
        self[key] = made
        return made
