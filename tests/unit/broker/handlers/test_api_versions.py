"""ApiVersions lists what is served, in a form that every client can read."""

from types import SimpleNamespace
from typing import cast

import pytest

from ottla.broker.apis import HANDLERS
from ottla.broker.handlers.api_versions import ApiVersions
from ottla.broker.services import RequestContext, Services
from ottla.errors import ErrorCode
from ottla.protocol.api import APIS, PRIVATE, ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

SERVICES = cast("Services", SimpleNamespace(serves_share_groups=True))  # it uses no other


def ask(version: int, name: str = "client", software: str = "1.0") -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software)
    return ApiVersions(SERVICES)(request, RequestContext(version, None, "127.0.0.1"))


def test_every_handler_is_listed_with_its_versions() -> None:
    listed = {api.api_key: (api.min_version, api.max_version) for api in ask(4).api_keys}
    assert listed.keys() == set(HANDLERS) - PRIVATE
    for key in set(HANDLERS) - PRIVATE:
        if key is not ApiKey.PRODUCE:
            assert listed[key] == (APIS[key].versions[0], APIS[key].versions[-1])
    assert listed[ApiKey.PRODUCE][0] == 0, "older librdkafka compresses only then"


def test_our_own_request_is_listed_to_our_own_clients_only() -> None:
    own = {api.api_key for api in ask(4, name="ottla").api_keys}
    assert own == set(HANDLERS)
    for name in ("Ottla", "ottla2", "apache-kafka-java", "librdkafka"):
        assert {api.api_key for api in ask(4, name=name).api_keys} == set(HANDLERS) - PRIVATE


def test_an_unknown_version_gets_the_whole_list() -> None:
    response = ApiVersions(SERVICES).unsupported_version()
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert response.api_keys == ask(0).api_keys


@pytest.mark.parametrize(("name", "software"), [("", "1"), ("-a", "1"), ("a", "1 0"), ("ä", "1")])
def test_a_client_with_an_invalid_name_is_refused_from_version_3_on(
    name: str, software: str
) -> None:
    assert ask(3, name, software).error_code == ErrorCode.INVALID_REQUEST
    assert ask(2, name, software).error_code == ErrorCode.NONE


def test_features_begin_at_level_0_which_older_clients_cannot_read() -> None:
    assert ask(3).supported_features == []
    supported = ask(4).supported_features
    assert {one.name: (one.min_version, one.max_version) for one in supported} == {
        "group.version": (0, 1),
        "share.version": (0, 1),
        "transaction.version": (0, 2),
    }
    finalized = ask(3).finalized_features
    assert {one.name: (one.min_version_level, one.max_version_level) for one in finalized} == {
        "group.version": (1, 1),
        "share.version": (1, 1),
        "transaction.version": (2, 2),
    }
