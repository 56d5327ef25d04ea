"""There are no quotas: none is listed or set, and a filter is checked as Kafka checks it."""

from typing import cast

import pytest

from ottla.broker.handlers.quotas import AlterClientQuotas, DescribeClientQuotas
from ottla.broker.services import RequestContext, Services
from ottla.errors import ErrorCode
from ottla.protocol.codec import decode, encode
from ottla.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    AlterQuotaResult,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntity,
    QuotaFilterComponent,
    QuotaOperation,
)

SERVICES = cast("Services", None)  # they use none
CONTEXT = RequestContext(1, None, "127.0.0.1")


def described(*components: tuple[str, int]) -> DescribeClientQuotasResponse:
    request = DescribeClientQuotasRequest(
        components=[
            QuotaFilterComponent(entity_type=name, match_type=kind, match="x")
            for name, kind in components
        ]
    )
    response = DescribeClientQuotas(SERVICES)(request, CONTEXT)
    return decode(DescribeClientQuotasResponse, 1, encode(response, 1))


@pytest.mark.parametrize("components", [[], [("user", 0), ("client-id", 2)], [("ip", 1)]])
def test_no_quota_is_found(components: list[tuple[str, int]]) -> None:
    response = described(*components)
    assert (response.error_code, response.entries) == (0, [])


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("nope", 0)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 7)], ErrorCode.INVALID_REQUEST),
        ([("", 0)], ErrorCode.INVALID_REQUEST),
        ([("user", 0), ("user", 0)], ErrorCode.INVALID_REQUEST),
        ([("user", 0), ("ip", 0)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_kafka_refuses_is_refused(
    components: list[tuple[str, int]], code: ErrorCode
) -> None:
    response = described(*components)
    assert (response.error_code, response.entries) == (code, None)
    assert response.error_message


def altered(*types: str, removes: bool) -> AlterQuotaResult:
    entry = AlterQuotaEntry(
        entity=[QuotaEntity(entity_type=name, entity_name="x") for name in types],
        ops=[QuotaOperation(key="producer_byte_rate", value=1.0, remove=removes)],
    )
    response = AlterClientQuotas(SERVICES)(AlterClientQuotasRequest(entries=[entry]), CONTEXT)
    assert isinstance(response, AlterClientQuotasResponse)
    (result,) = decode(AlterClientQuotasResponse, 1, encode(response, 1)).entries
    assert result.entity == entry.entity
    return result


def test_a_quota_is_not_set_and_one_that_is_not_there_may_be_removed() -> None:
    result = altered("user", removes=False)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message == "there are no quotas: no client is limited, so none can be set"
    assert altered("user", "client-id", removes=True).error_code == ErrorCode.NONE


@pytest.mark.parametrize("types", [(), ("nope",), ("user", "user"), ("user", "ip")])
def test_a_quota_of_nothing_is_refused(types: tuple[str, ...]) -> None:
    assert altered(*types, removes=True).error_code == ErrorCode.INVALID_REQUEST
