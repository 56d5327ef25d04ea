"""Transactions of our own client, against a real broker, in both versions of their protocol."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest

import ottla.testing
from ottla.client.client import Client
from ottla.client.errors import ConnectionLost, Fenced, Refused, Unreachable
from ottla.client.isolation import readable
from ottla.client.partitions import FetchLimits, Isolation, fetch
from ottla.client.transactional_producer import TransactionalProducer, end_transaction
from ottla.client.transactions import describe_transactions
from ottla.errors import ErrorCode
from ottla.model import BrokerId, Endpoint, Offset, TopicPartition
from ottla.protocol.messages.transactions import EndTxnResponse
from ottla.records.batch import Packed, Record, pack, records

PATIENCE_S = 60
_names = count(1)


class ClassicClient(Client):
    """Sees a cluster that has not agreed on the newer version of transactions."""

    async def transaction_version(self) -> int:
        return 1


class ForgetfulClient(Client):
    """Loses the first answer to every end of a transaction, after the broker has sent it."""

    has_lost = False

    async def send_to_transaction_coordinator(
        self, transactional_id: str, request: object, response_class: type[Any], **more: Any
    ) -> Any:
        answer = await super().send_to_transaction_coordinator(
            transactional_id, request, response_class, **more
        )
        if response_class is EndTxnResponse and not self.has_lost:
            self.has_lost = True
            raise ConnectionLost("the answer was lost")
        return answer


class ForgetfulClassicClient(ForgetfulClient, ClassicClient):
    """Both."""


BOTH = pytest.mark.parametrize("client_class", [Client, ClassicClient])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ottla.testing.broker() as address:
        yield address


@pytest.fixture
def tp() -> TopicPartition:
    return TopicPartition(f"topic-{next(_names)}", 0)


def run(
    address: str,
    scenario: Callable[[Client], Awaitable[None]],
    client_class: Callable[[list[Endpoint]], Client] = Client,
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            client_class([Endpoint.parse(address)]) as client,
        ):
            await scenario(client)

    asyncio.run(main())


def letter(value: str) -> Packed:
    return pack([Record(value=value.encode())])


async def seen(client: Client, tp: TopicPartition) -> list[str]:
    """What a reader of committed records finds in a partition; it has to be all there is."""
    leader = await client.leader_of(tp)
    limits = FetchLimits(wait_ms_max=0)
    fetched = await fetch(
        client, leader, {tp: Offset(0)}, limits=limits, isolation=Isolation.READ_COMMITTED
    )
    found = fetched.get(tp)
    if found is None:
        return []
    return [
        (record.value or b"").decode()
        for _, batch in readable(found.batches, found.aborted)
        if batch is not None
        for record in records(batch)
    ]


async def seen_within_patience(client: Client, tp: TopicPartition, values: list[str]) -> None:
    """Markers are written right after a commit is answered: `values` come, and nothing else."""
    async with asyncio.timeout(PATIENCE_S):
        while (found := await seen(client, tp)) != values:
            assert found == values[: len(found)]
            await asyncio.sleep(0.01)


@BOTH
def test_what_is_committed_counts_and_what_is_aborted_does_not(
    address: str, tp: TopicPartition, client_class: type[Client]
) -> None:
    async def scenario(client: Client) -> None:
        await client.describe_or_create(tp.topic)
        producer = await TransactionalProducer.open(client, f"id-{tp}")
        for number in range(6):
            await producer.write_packed(tp, letter(f"{number}a"))
            await producer.write_packed(tp, letter(f"{number}b"))
            await (producer.abort() if number % 2 else producer.commit())
        await seen_within_patience(client, tp, ["0a", "0b", "2a", "2b", "4a", "4b"])

    run(address, scenario, client_class)


@BOTH
def test_somebody_else_ends_what_a_producer_has_left_open(
    address: str, tp: TopicPartition, client_class: type[Client]
) -> None:
    async def scenario(client: Client) -> None:
        await client.describe_or_create(tp.topic)
        for number, is_committed in enumerate((True, False)):
            producer = await TransactionalProducer.open(client, f"id-{tp}-{number}")
            await producer.write_packed(tp, letter(str(number)))
            identity = producer.identity
            for _ in range(2):  # the second time it is what it was told before
                await end_transaction(client, identity, is_committed=is_committed)
            described = await describe_transactions(client, [identity.transactional_id, "unknown"])
            (state,) = [one.state for one in described.values()]
            assert state == ("CompleteCommit" if is_committed else "CompleteAbort")
            with pytest.raises(Refused):
                await end_transaction(client, identity, is_committed=not is_committed)
        await seen_within_patience(client, tp, ["0"])

    run(address, scenario, client_class)


@BOTH
def test_who_opens_an_id_fences_who_had_it_and_aborts_what_was_open(
    address: str, tp: TopicPartition, client_class: type[Client]
) -> None:
    async def scenario(client: Client) -> None:
        await client.describe_or_create(tp.topic)
        zombie = await TransactionalProducer.open(client, f"id-{tp}")
        await zombie.write_packed(tp, letter("of the zombie"))
        heir = await TransactionalProducer.open(client, f"id-{tp}")
        await heir.write_packed(tp, letter("of the heir"))
        for attempt in (
            zombie.write_packed(tp, letter("late")),
            zombie.commit(),
            zombie.abort(),
        ):
            with pytest.raises(Fenced, match=f"transactional id id-{tp}: another producer"):
                await attempt
        await heir.commit()
        await seen_within_patience(client, tp, ["of the heir"])

    run(address, scenario, client_class)


@pytest.mark.parametrize("client_class", [ForgetfulClient, ForgetfulClassicClient])
def test_a_commit_whose_answer_was_lost_is_asked_for_again(
    address: str, tp: TopicPartition, client_class: type[ForgetfulClient]
) -> None:
    async def scenario(client: Client) -> None:
        await client.describe_or_create(tp.topic)
        producer = await TransactionalProducer.open(client, f"id-{tp}")
        await producer.write_packed(tp, letter("a"))
        await producer.commit()
        await producer.write_packed(tp, letter("b"))
        await producer.commit()
        await seen_within_patience(client, tp, ["a", "b"])

    run(address, scenario, client_class)


@BOTH
def test_a_transaction_without_content_ends_without_a_word(
    address: str, tp: TopicPartition, client_class: type[Client]
) -> None:
    async def scenario(client: Client) -> None:
        producer = await TransactionalProducer.open(client, f"id-{tp}")
        await producer.commit()
        await producer.abort()

    run(address, scenario, client_class)


def test_a_timeout_that_the_broker_does_not_allow_is_explained(address: str) -> None:
    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match=r"transaction\.max\.timeout\.ms") as refused:
            await TransactionalProducer.open(client, "id", timeout_ms=2**31 - 1)
        assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT

    run(address, scenario)


def test_coordinators_are_reached_where_the_client_was_told(
    address: str, unused_endpoint: Endpoint
) -> None:
    class Elsewhere(Client):
        """Was told of another place for every broker."""

        def __init__(self, bootstrap: list[Endpoint]) -> None:
            super().__init__(bootstrap, addresses={BrokerId(0): unused_endpoint})

    async def scenario(client: Client) -> None:
        coordinator = await client.coordinator_of("group")
        assert coordinator == 0
        with pytest.raises(Unreachable, match=str(unused_endpoint)):
            await client.connect_broker(coordinator)

    run(address, scenario, Elsewhere)
