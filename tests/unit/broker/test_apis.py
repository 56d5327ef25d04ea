"""The table of APIs: every row is a handler, and clients are told of exactly these."""

from typing import Any, cast

import pytest

from ottla.broker.apis import HANDLERS, handler_class
from ottla.broker.handlers.api_versions import ApiVersions
from ottla.broker.services import RequestContext
from ottla.protocol.api import APIS, PRIVATE, ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest


@pytest.mark.parametrize("key", HANDLERS, ids=lambda key: key.name)
def test_every_row_names_a_handler_of_that_request(key: ApiKey) -> None:
    found = handler_class(key)
    assert found.__name__ == APIS[key].name
    is_hot = key in {ApiKey.PRODUCE, ApiKey.FETCH}
    assert callable(vars(found)["take" if is_hot else "__call__"])


def test_clients_are_told_of_the_rows_and_of_nothing_else() -> None:
    handler = ApiVersions(cast("Any", None))
    response = handler(ApiVersionsRequest(), RequestContext(0, None, "127.0.0.1"))
    listed = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    assert listed.keys() == set(HANDLERS) - PRIVATE
    produce = listed.pop(ApiKey.PRODUCE)
    assert produce == (0, 13), "older librdkafka compresses only if version 0 is listed"
    for key, versions in listed.items():
        assert versions == (APIS[key].versions[0], APIS[key].versions[-1])
