"""Errors of the client: which are worth a retry, and what they tell users."""

import pytest

from ottla.client.errors import Fenced, NoSuchGroup, NoSuchTopic, Refused, check
from ottla.errors import ErrorCode


def test_no_error_raises_nothing() -> None:
    check(ErrorCode.NONE, "topic t")


def test_an_error_names_its_subject_and_explains_its_code() -> None:
    with pytest.raises(Refused, match="topic t: a topic with this name exists already"):
        check(ErrorCode.TOPIC_ALREADY_EXISTS, "topic t")


def test_the_brokers_own_text_wins() -> None:
    with pytest.raises(Refused, match=r"^topic t: because$"):
        check(ErrorCode.TOPIC_ALREADY_EXISTS, "topic t", "because")


def test_a_code_without_explanation_is_named_and_an_unknown_one_a_server_error() -> None:
    with pytest.raises(Refused, match=r"^it: policy violation$"):
        check(ErrorCode.POLICY_VIOLATION, "it")
    with pytest.raises(Refused) as caught:
        check(31_999, "it")
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_only_what_the_broker_did_not_do_is_retriable() -> None:
    assert Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-0").is_retriable
    assert not Refused(ErrorCode.MESSAGE_TOO_LARGE, "t-0").is_retriable
    assert Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t-0").is_retriable
    assert not NoSuchTopic("t").is_retriable
    assert not NoSuchGroup("g").is_retriable
    assert not Fenced("id").is_retriable
