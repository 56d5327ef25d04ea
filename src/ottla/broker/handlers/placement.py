"""ListPartitionReassignments (46), version 0.

Replicas do not move yet, so the list is always empty, as Kafka's is when no move is under way.
"""

from ottla.broker.services import RequestContext, Services
from ottla.protocol.messages.placement import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


class ListPartitionReassignments:
    def __init__(self, services: Services) -> None:
        """Uses none of them."""

    def __call__(
        self, request: ListPartitionReassignmentsRequest, context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_message=None, topics=[])
