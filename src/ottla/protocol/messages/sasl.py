"""SaslHandshake, SaslAuthenticate, and the SCRAM credentials they check."""

from ottla.protocol.schema import (
    array,
    binary,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    wire,
)


@message(versions="0-1", flexible="none")
class SaslHandshakeRequest:
    """Choose a mechanism. This message never became flexible."""

    mechanism: str = wire(string, "0+")


@message(versions="0-1", flexible="none")
class SaslHandshakeResponse:
    """The result for the mechanism, and all supported mechanisms."""

    error_code: int = wire(int16, "0+")
    mechanisms: list[str] = wire(array(string), "0+")


@message(versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """A step of the mechanism."""

    auth_bytes: bytes = wire(binary, "0+")


@message(versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The broker's response to one step."""

    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    auth_bytes: bytes = wire(binary, "0+")
    session_lifetime_ms: int = wire(int64, "1+")


@struct
class ScramUserName:
    name: str = wire(string, "0+")


@message(versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    """Describe the SCRAM credentials of these users; null means all users."""

    users: list[ScramUserName] | None = wire(array(ScramUserName), "0+", nullable="0+")


@struct
class ScramCredentialInfo:
    mechanism: int = wire(int8, "0+")
    iterations: int = wire(int32, "0+")


@struct
class DescribeUserScramCredentialsResult:
    user: str = wire(string, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    credential_infos: list[ScramCredentialInfo] = wire(array(ScramCredentialInfo), "0+")


@message(versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations, never secrets."""

    throttle_time_ms: int = wire(int32, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = wire(
        array(DescribeUserScramCredentialsResult), "0+"
    )


@struct
class ScramCredentialDeletion:
    name: str = wire(string, "0+")
    mechanism: int = wire(int8, "0+")


@struct
class ScramCredentialUpsertion:
    name: str = wire(string, "0+")
    mechanism: int = wire(int8, "0+")
    iterations: int = wire(int32, "0+")
    salt: bytes = wire(binary, "0+")
    salted_password: bytes = wire(binary, "0+")


@message(versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    """Set or delete SCRAM credentials."""

    deletions: list[ScramCredentialDeletion] = wire(array(ScramCredentialDeletion), "0+")
    upsertions: list[ScramCredentialUpsertion] = wire(array(ScramCredentialUpsertion), "0+")


@struct
class AlterUserScramCredentialsResult:
    user: str = wire(string, "0+")
    error_code: int = wire(int16, "0+")
    error_message: str | None = wire(string, "0+", nullable="0+")


@message(versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    """The result for each user."""

    throttle_time_ms: int = wire(int32, "0+")
    results: list[AlterUserScramCredentialsResult] = wire(
        array(AlterUserScramCredentialsResult), "0+"
    )
