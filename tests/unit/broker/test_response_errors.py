"""Error codes are found wherever a response message has them, in the versions that have them."""

import pytest

from ottla.broker.apis import HANDLERS
from ottla.broker.response_errors import error_codes, error_codes_in_slices
from ottla.errors import ErrorCode
from ottla.protocol.api import APIS, ApiKey
from ottla.protocol.codec import Steps
from ottla.protocol.messages.classic_groups import HeartbeatResponse
from ottla.protocol.messages.coordination import Coordinator, FindCoordinatorResponse
from ottla.protocol.messages.group_offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


def in_slices(message: object, version: int) -> tuple[list[int], int]:
    """The codes, and how many units of work they took."""
    steps: Steps[list[int]] = error_codes_in_slices(message, version)
    units = 0
    try:
        while True:
            units += next(steps)
    except StopIteration as over:
        return over.value, units


def commits(*codes: int) -> OffsetCommitResponse:
    partitions = [
        OffsetCommitResponsePartition(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(partitions=partitions)])


@pytest.mark.parametrize(
    ("message", "version", "codes"),
    [
        (HeartbeatResponse(), 4, []),
        (HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 4, [27]),
        (commits(0, 25, 0, 22), 8, [25, 22]),
        (FindCoordinatorResponse(error_code=15), 3, [15]),
        # Version 4 has a list instead: the field is not sent, so its error is not counted.
        (
            FindCoordinatorResponse(error_code=15, coordinators=[Coordinator(error_code=14)]),
            4,
            [14],
        ),
    ],
)
def test_codes_other_than_none_are_found(message: object, version: int, codes: list[int]) -> None:
    assert error_codes(message, version) == codes
    assert in_slices(message, version)[0] == codes


def test_a_large_response_is_looked_at_in_slices() -> None:
    codes, units = in_slices(commits(*[25] * 10_000), 8)
    assert len(codes) == 10_000
    assert units >= 200


@pytest.mark.parametrize(
    "key", [key for key in HANDLERS if key not in {ApiKey.PRODUCE, ApiKey.FETCH}]
)
def test_every_response_of_every_version_can_be_looked_at(key: ApiKey) -> None:
    for version in APIS[key].versions:
        assert error_codes(APIS[key].response_class(), version) == []
