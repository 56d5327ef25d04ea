"""Listing what waits over the leaders of partitions, and cancelling in batches."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fakes.answering_broker import AnsweringBroker, OneTopic
from ottla.client.client import Client
from ottla.client.errors import ClientError, NotSupported, Refused
from ottla.client.waiting_records import (
    CancelOutcome,
    Ticket,
    WaitingChoice,
    cancel,
    count_waiting,
    find_waiting,
    list_waiting,
)
from ottla.errors import ErrorCode
from ottla.model import TimestampMs, TopicPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.admin import AdminQueryRequest, AdminQueryResponse
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.records.batch import read_header, records
from ottla.records.hidden_records import TicketEnd

TPS = [TopicPartition("orders", index) for index in range(3)]
NOW = TimestampMs(1000)
DUES = {index: [index + 3 * number for number in range(20)] for index in range(3)}  # in turns


def row(ticket: int, due_ms: int) -> dict[str, Any]:
    return {
        "ticket": ticket,
        "due_ms": due_ms,
        "size_bytes": 10,
        "schedule": None,
        "key": base64.b64encode(b"k").decode(),
        "is_readable": True,
    }


class Leader:
    """Answers with pages of four rows, and refuses the first request of each partition."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._refused: set[int] = set()

    def __call__(self, request: AdminQueryRequest) -> AdminQueryResponse:
        assert request.name == "waiting.list"
        body = json.loads(request.body)
        partition = body["partition"]
        if partition not in self._refused:
            self._refused.add(partition)
            return AdminQueryResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.asked.append(body)
        rows = [row(ticket, due_ms) for ticket, due_ms in enumerate(DUES[partition])]
        if body.get("key") is not None:
            rows.reverse()  # a key is searched in another order
        if body.get("tickets") is not None:
            rows = [rows[ticket] for ticket in body["tickets"]]
        first = 0 if body.get("after") is None else body["after"][-1]
        last = first + min(4, body.get("limit", 4))
        found = {
            "is_enabled": True,
            "waiting": 20,
            "schedules": 1,
            "undecided": 2,
            "rows": rows[first:last],
            "after": None if last >= len(rows) else [0, last],
        }
        return AdminQueryResponse(body=json.dumps(found).encode())


def with_client(
    scripts: dict[ApiKey, Callable[[Any], Any]],
    scenario: Callable[[Client, AnsweringBroker], Awaitable[None]],
) -> None:
    async def run() -> None:
        metadata = OneTopic("orders", partition_count=3)
        broker = AnsweringBroker({ApiKey.METADATA: metadata, **scripts})
        async with broker:
            metadata.endpoint = broker.endpoint
            async with Client([broker.endpoint], timeout_s=30) as client:
                await scenario(client, broker)

    asyncio.run(run())


@pytest.mark.parametrize(("count_max", "pages"), [(None, 15), (60, 15), (12, 5), (1, 3)])
def test_pages_of_all_partitions_are_merged_and_no_more_are_asked_for_than_needed(
    count_max: int | None, pages: int
) -> None:
    leader = Leader()

    async def scenario(client: Client, _: AnsweringBroker) -> None:
        found = await list_waiting(client, TPS, WaitingChoice(count_max=count_max))
        assert [one.due_ms for one in found] == list(range(60))[:count_max]
        assert found[0].ticket == Ticket(0, 0)
        assert len(leader.asked) == pages

    with_client({ApiKey.ADMIN_QUERY: leader}, scenario)


@pytest.mark.parametrize("count_max", [None, 7])
def test_what_a_key_finds_is_sorted_here(count_max: int | None) -> None:
    leader = Leader()

    async def scenario(client: Client, _: AnsweringBroker) -> None:
        choice = WaitingChoice(key=b"k", due_before_ms=TimestampMs(99), count_max=count_max)
        found = await list_waiting(client, TPS, choice)
        assert [one.due_ms for one in found] == list(range(60))[:count_max]
        assert {one["key"] for one in leader.asked} == {base64.b64encode(b"k").decode()}
        assert {one["due_before_ms"] for one in leader.asked} == {99}

    with_client({ApiKey.ADMIN_QUERY: leader}, scenario)


def test_counts_and_tickets_are_asked_for_by_partition() -> None:
    async def scenario(client: Client, _: AnsweringBroker) -> None:
        counts = await count_waiting(client, TPS)
        assert [(one.partition, one.waiting, one.schedules, one.undecided) for one in counts] == [
            (index, 20, 1, 2) for index in range(3)
        ]
        found = await find_waiting(client, TPS[1], [3, 5])
        assert [one.ticket for one in found] == [Ticket(1, 3), Ticket(1, 5)]

    with_client({ApiKey.ADMIN_QUERY: Leader()}, scenario)


def test_one_partition_that_fails_is_what_a_list_of_several_fails_with() -> None:
    """The others are still being asked, and would be for half a minute."""

    def refuse(request: AdminQueryRequest) -> AdminQueryResponse:
        is_first = json.loads(request.body)["partition"] == 0
        code = ErrorCode.INVALID_REQUEST if is_first else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return AdminQueryResponse(error_code=code)

    async def refused(client: Client, _: AnsweringBroker) -> None:
        with pytest.raises(Refused, match=r"^topic orders"):
            async with asyncio.timeout(10):
                await list_waiting(client, TPS, WaitingChoice())

    with_client({ApiKey.ADMIN_QUERY: refuse}, refused)


def test_a_refusal_is_about_the_topic_and_another_broker_is_named() -> None:
    def refuse(request: AdminQueryRequest) -> AdminQueryResponse:
        return AdminQueryResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="no")

    async def refused(client: Client, broker: AnsweringBroker) -> None:
        with pytest.raises(Refused, match=r"^topic orders: no$"):
            await count_waiting(client, TPS[:1])

    async def not_ours(client: Client, broker: AnsweringBroker) -> None:
        del broker.versions[ApiKey.ADMIN_QUERY]
        with pytest.raises(NotSupported, match="does not support AdminQuery: it is no broker of"):
            await count_waiting(client, TPS[:1])

    with_client({ApiKey.ADMIN_QUERY: refuse}, refused)
    with_client({}, not_ours)


class Judge:
    """Takes cancels of even tickets; odd ones have ended, each in its way."""

    def __init__(self, ends: list[str]) -> None:
        self.batches: list[tuple[int, int, list[int]]] = []  # partition, sequence, tickets
        self._ends = ends

    def __call__(self, request: ProduceRequest) -> ProduceResponse:
        data = request.topic_data[0].partition_data[0]
        assert data.records is not None
        tickets = [int(dict(one.headers)["ottla.cancel"] or b"") for one in records(data.records)]
        sequence = read_header(data.records).base_sequence
        self.batches.append((data.index, sequence, tickets))
        errors = [
            BatchIndexAndErrorMessage(
                batch_index=index,
                batch_index_error_message=f"ticket {ticket} {self._ends[ticket % len(self._ends)]}",
            )
            for index, ticket in enumerate(tickets)
            if ticket % 2
        ]
        result = PartitionProduceResponse(
            index=data.index,
            error_code=ErrorCode.INVALID_RECORD if errors else ErrorCode.NONE,
            record_errors=errors[:2],  # a broker names only the first
        )
        return ProduceResponse(
            responses=[TopicProduceResponse(name="orders", partition_responses=[result])]
        )


def given_id(request: InitProducerIdRequest) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=42, producer_epoch=0)


def test_tickets_that_are_refused_are_taken_out_and_the_rest_is_sent_again() -> None:
    judge = Judge([one.value for one in TicketEnd])

    async def scenario(client: Client, _: AnsweringBroker) -> None:
        tickets = [Ticket(0, 2), Ticket(0, 1), Ticket(1, 4), Ticket(0, 3), Ticket(0, 5)]
        found = await cancel(client, "orders", [*tickets, Ticket(0, 2)], NOW)
        assert found == {
            Ticket(0, 2): CancelOutcome.CANCELLED,
            Ticket(0, 1): CancelOutcome.ALREADY_CANCELLED,
            Ticket(1, 4): CancelOutcome.CANCELLED,
            Ticket(0, 3): CancelOutcome.UNKNOWN,
            Ticket(0, 5): CancelOutcome.ALREADY_CANCELLED,
        }
        assert judge.batches == [(0, 0, [2, 1, 3, 5]), (0, 0, [2, 5]), (0, 0, [2]), (1, 0, [4])]

    with_client({ApiKey.PRODUCE: judge, ApiKey.INIT_PRODUCER_ID: given_id}, scenario)


def test_another_reason_for_a_refusal_is_an_error_of_its_own() -> None:
    async def scenario(client: Client, _: AnsweringBroker) -> None:
        with pytest.raises(ClientError, match="cancelling failed: ticket 1 went for a walk"):
            await cancel(client, "orders", [Ticket(0, 1)], NOW)

    judge = Judge(["went for a walk"])
    with_client({ApiKey.PRODUCE: judge, ApiKey.INIT_PRODUCER_ID: given_id}, scenario)


def test_many_cancels_go_in_several_batches() -> None:
    judge = Judge([])

    async def scenario(client: Client, _: AnsweringBroker) -> None:
        found = await cancel(client, "orders", [Ticket(0, 2 * n) for n in range(1100)], NOW)
        assert set(found.values()) == {CancelOutcome.CANCELLED}
        assert [(first, len(some)) for _, first, some in judge.batches] == [
            (0, 500),
            (500, 500),
            (1000, 100),
        ]

    with_client({ApiKey.PRODUCE: judge, ApiKey.INIT_PRODUCER_ID: given_id}, scenario)
