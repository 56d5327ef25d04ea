"""FindCoordinator names a broker, or an error that a client does not repeat without end."""

from pathlib import Path

from fakes.handled import Handled, handle
from ottla.errors import ErrorCode
from ottla.model import Uuid
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.coordination import FindCoordinatorRequest
from ottla.queues.share_state import SharePartitionKey

GROUP, TRANSACTION, SHARE = 0, 1, 2


def test_older_versions_ask_for_one_key_and_newer_ones_for_many(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        for key_type in (GROUP, TRANSACTION):
            request = FindCoordinatorRequest(key="a", key_type=key_type)
            one = await handled.call(ApiKey.FIND_COORDINATOR, request, 3)
            assert (one.error_code, one.node_id) == (0, 0)
            assert (one.host, one.port) == handled.broker.address
            request = FindCoordinatorRequest(coordinator_keys=["a", "b"], key_type=key_type)
            many = await handled.call(ApiKey.FIND_COORDINATOR, request, 4)
            assert [c.key for c in many.coordinators] == ["a", "b"]
            assert {c.error_code for c in many.coordinators} == {0}

    handle(tmp_path, scenario)


def test_share_partitions_have_a_coordinator(tmp_path: Path) -> None:
    async def scenario(handled: Handled) -> None:
        await handled.find_coordinators()
        key = str(SharePartitionKey("a:b", Uuid(bytes(range(16))), 3))
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=SHARE)
        while True:
            response = await handled.call(ApiKey.FIND_COORDINATOR, request, 6)
            (found,) = response.coordinators
            if found.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:  # its topic is created
                break
        assert (found.error_code, found.node_id) == (0, 0)

    handle(tmp_path, scenario)


def test_other_keys_are_refused_for_good(tmp_path: Path) -> None:
    malformed = ["a", "a:b", "a:AAAA:0", ":AAECAwQFBgcICQoLDA0ODw:0", "g:x:-1"]

    async def scenario(handled: Handled) -> None:
        for key_type, keys in ((SHARE, malformed), (3, ["a"])):
            request = FindCoordinatorRequest(coordinator_keys=keys, key_type=key_type)
            response = await handled.call(ApiKey.FIND_COORDINATOR, request, 6)
            for refused in response.coordinators:
                assert refused.error_code == ErrorCode.INVALID_REQUEST
                assert (refused.node_id, refused.port) == (-1, -1)
                assert refused.error_message

    handle(tmp_path, scenario)
