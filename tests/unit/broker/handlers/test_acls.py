"""Without an authorizer every request about rules is refused, each part of it with its result."""

from typing import cast

from ottla.broker.handlers.acls import CreateAcls, DeleteAcls, DescribeAcls
from ottla.broker.handlers.scram import DescribeUserScramCredentials
from ottla.broker.services import RequestContext, Services
from ottla.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from ottla.protocol.messages.sasl import DescribeUserScramCredentialsRequest, ScramUserName

SERVICES = cast("Services", None)  # they use none
CONTEXT = RequestContext(3, None, "127.0.0.1")
DISABLED = ErrorCode.SECURITY_DISABLED


def test_rules_are_neither_found_nor_kept_nor_deleted() -> None:
    described = DescribeAcls(SERVICES)(DescribeAclsRequest(), CONTEXT)
    assert (described.error_code, described.resources) == (DISABLED, [])
    assert "no authorizer" in (described.error_message or "")
    creations = [AclCreation(resource_name="t") for _ in range(2)]
    created = CreateAcls(SERVICES)(CreateAclsRequest(creations=creations), CONTEXT)
    assert [one.error_code for one in created.results] == [DISABLED, DISABLED]
    deleted = DeleteAcls(SERVICES)(DeleteAclsRequest(filters=[DeleteAclsFilter()]), CONTEXT)
    assert [one.error_code for one in deleted.filter_results] == [DISABLED]


def test_no_user_has_credentials() -> None:
    handler = DescribeUserScramCredentials(SERVICES)
    every = handler(DescribeUserScramCredentialsRequest(users=None), CONTEXT)
    assert (every.error_code, every.results) == (0, [])
    users = [ScramUserName(name="a"), ScramUserName(name="a"), ScramUserName(name="b")]
    some = handler(DescribeUserScramCredentialsRequest(users=users), CONTEXT)
    missing = ErrorCode.RESOURCE_NOT_FOUND
    assert [(one.user, one.error_code) for one in some.results] == [("a", missing), ("b", missing)]
