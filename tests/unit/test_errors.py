"""Exceptions carry codes of Kafka's table, and texts that fit into a response."""

from ottla import errors
from ottla.errors import ApiError, ErrorCode


def api_errors(base: type[ApiError] = ApiError) -> list[type[ApiError]]:
    found = list(base.__subclasses__())
    return found + [one for child in found for one in api_errors(child)]


def test_every_error_has_a_code_of_its_own_meaning() -> None:
    ours = [one for one in api_errors() if one.__module__ == errors.__name__]
    assert ours
    for one in ours:
        assert isinstance(one.code, ErrorCode)
        assert one.code is not ErrorCode.NONE


def test_a_long_text_is_cut_before_it_fills_a_response() -> None:
    assert len(str(ApiError("x" * 100_000))) == 2000
