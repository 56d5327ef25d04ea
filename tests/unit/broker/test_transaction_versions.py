"""Errors of transactions, as clients of each version of an API know them."""

import pytest

from ottla.broker.transaction_versions import known_error, known_refusal, transaction_version
from ottla.errors import (
    ErrorCode,
    InvalidProducerEpoch,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
)
from ottla.protocol.api import APIS, ApiKey

FENCED, EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
ABORTABLE, STATE = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE
CONCURRENT, MAPPING = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_PRODUCER_ID_MAPPING
LOADING, REPLICAS = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS
TRANSACTIONAL = [
    ApiKey.PRODUCE,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
]


@pytest.mark.parametrize(
    ("api", "first"),
    [
        (ApiKey.PRODUCE, 12),
        (ApiKey.TXN_OFFSET_COMMIT, 5),
        (ApiKey.END_TXN, 5),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 4),
    ],
)
def test_transaction_version_2_begins_with_a_version_of_each_api(api: ApiKey, first: int) -> None:
    assert transaction_version(api, first - 1) == 0
    assert transaction_version(api, first) == 2
    assert first in APIS[api].versions


@pytest.mark.parametrize("api", [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.INIT_PRODUCER_ID])
def test_requests_of_older_producers_stay_in_version_0(api: ApiKey) -> None:
    assert {transaction_version(api, version) for version in APIS[api].versions} == {0}


@pytest.mark.parametrize(
    ("api", "error", "before", "first"),
    [
        (ApiKey.INIT_PRODUCER_ID, FENCED, EPOCH, 4),
        (ApiKey.ADD_PARTITIONS_TO_TXN, FENCED, EPOCH, 2),
        (ApiKey.ADD_OFFSETS_TO_TXN, FENCED, EPOCH, 2),
        (ApiKey.END_TXN, FENCED, EPOCH, 2),
        (ApiKey.ADD_PARTITIONS_TO_TXN, ABORTABLE, STATE, 5),
        (ApiKey.PRODUCE, ABORTABLE, STATE, 11),
        (ApiKey.TXN_OFFSET_COMMIT, ABORTABLE, STATE, 4),
        (ApiKey.PRODUCE, CONCURRENT, REPLICAS, 12),
        (ApiKey.TXN_OFFSET_COMMIT, CONCURRENT, LOADING, 5),
    ],
)
def test_an_error_is_sent_from_the_version_that_introduced_it(
    api: ApiKey, error: ErrorCode, before: ErrorCode, first: int
) -> None:
    assert known_error(api, first - 1, error) is before
    assert known_error(api, first, error) is error


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT])
def test_a_writer_that_was_fenced_has_a_wrong_epoch_in_every_version(api: ApiKey) -> None:
    assert {known_error(api, version, FENCED) for version in APIS[api].versions} == {EPOCH}


@pytest.mark.parametrize(
    ("api", "retriable"), [(ApiKey.PRODUCE, REPLICAS), (ApiKey.TXN_OFFSET_COMMIT, LOADING)]
)
def test_a_writer_repeats_a_request_whose_coordinator_could_not_verify_it(
    api: ApiKey, retriable: ErrorCode
) -> None:
    for version in APIS[api].versions:
        assert known_error(api, version, ErrorCode.NOT_COORDINATOR) is retriable
        assert known_error(api, version, MAPPING) is MAPPING


@pytest.mark.parametrize("api", TRANSACTIONAL)
def test_no_error_stays_no_error(api: ApiKey) -> None:
    assert known_error(api, APIS[api].versions[0], ErrorCode.NONE) is ErrorCode.NONE


def test_a_refusal_keeps_its_text() -> None:
    fenced = known_refusal(ApiKey.PRODUCE, 12, ProducerFenced("a newer producer"))
    assert isinstance(fenced, InvalidProducerEpoch)
    assert str(fenced) == "a newer producer"
    lost = known_refusal(ApiKey.PRODUCE, 12, NotCoordinator("look again"))
    assert isinstance(lost, NotEnoughReplicas)
    same = InvalidProducerEpoch("as it is")
    assert known_refusal(ApiKey.END_TXN, 0, same) is same
