"""Delegation tokens: create, renew, expire, describe."""

from ottla.protocol.schema import array, binary, int16, int32, int64, message, string, struct, wire


@struct
class CreatableRenewer:
    principal_type: str = wire(string, "0+")
    principal_name: str = wire(string, "0+")


@message(versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    """Create a token that authenticates as its owner."""

    owner_principal_type: str | None = wire(string, "3+", nullable="3+")
    owner_principal_name: str | None = wire(string, "3+", nullable="3+")
    renewers: list[CreatableRenewer] = wire(array(CreatableRenewer), "0+")
    max_lifetime_ms: int = wire(int64, "0+")


@message(versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    """The token and its secret."""

    error_code: int = wire(int16, "0+")
    principal_type: str = wire(string, "0+")
    principal_name: str = wire(string, "0+")
    token_requester_principal_type: str = wire(string, "3+")
    token_requester_principal_name: str = wire(string, "3+")
    issue_timestamp_ms: int = wire(int64, "0+")
    expiry_timestamp_ms: int = wire(int64, "0+")
    max_timestamp_ms: int = wire(int64, "0+")
    token_id: str = wire(string, "0+")
    hmac: bytes = wire(binary, "0+")
    throttle_time_ms: int = wire(int32, "0+")


@message(versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """Renew a token: a later expiry time."""

    hmac: bytes = wire(binary, "0+")
    renew_period_ms: int = wire(int64, "0+")


@message(versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """The token's new expiry time."""

    error_code: int = wire(int16, "0+")
    expiry_timestamp_ms: int = wire(int64, "0+")
    throttle_time_ms: int = wire(int32, "0+")


@message(versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    """Expire a token: an earlier expiry time."""

    hmac: bytes = wire(binary, "0+")
    expiry_time_period_ms: int = wire(int64, "0+")


@message(versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    """The token's new expiry time."""

    error_code: int = wire(int16, "0+")
    expiry_timestamp_ms: int = wire(int64, "0+")
    throttle_time_ms: int = wire(int32, "0+")


@struct
class DescribeDelegationTokenOwner:
    principal_type: str = wire(string, "0+")
    principal_name: str = wire(string, "0+")


@message(versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    """Describe tokens by owner; null means all."""

    owners: list[DescribeDelegationTokenOwner] | None = wire(
        array(DescribeDelegationTokenOwner), "0+", nullable="0+"
    )


@struct
class DescribedDelegationTokenRenewer:
    principal_type: str = wire(string, "0+")
    principal_name: str = wire(string, "0+")


@struct
class DescribedDelegationToken:
    principal_type: str = wire(string, "0+")
    principal_name: str = wire(string, "0+")
    token_requester_principal_type: str = wire(string, "3+")
    token_requester_principal_name: str = wire(string, "3+")
    issue_timestamp: int = wire(int64, "0+")
    expiry_timestamp: int = wire(int64, "0+")
    max_timestamp: int = wire(int64, "0+")
    token_id: str = wire(string, "0+")
    hmac: bytes = wire(binary, "0+")
    renewers: list[DescribedDelegationTokenRenewer] = wire(
        array(DescribedDelegationTokenRenewer), "0+"
    )


@message(versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    """The tokens that the caller may see."""

    error_code: int = wire(int16, "0+")
    tokens: list[DescribedDelegationToken] = wire(array(DescribedDelegationToken), "0+")
    throttle_time_ms: int = wire(int32, "0+")
