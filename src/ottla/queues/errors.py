"""Errors of share groups."""

from ottla.errors import ApiError, ErrorCode


class InvalidRecordState(ApiError):
    """A record is acknowledged by a member that has not acquired it, or not any more."""

    code = ErrorCode.INVALID_RECORD_STATE


class ShareSessionNotFound(ApiError):
    code = ErrorCode.SHARE_SESSION_NOT_FOUND


class InvalidShareSessionEpoch(ApiError):
    code = ErrorCode.INVALID_SHARE_SESSION_EPOCH


class ShareSessionLimitReached(ApiError):
    code = ErrorCode.SHARE_SESSION_LIMIT_REACHED


class NonEmptyGroup(ApiError):
    code = ErrorCode.NON_EMPTY_GROUP


class FencedStateEpoch(ApiError):
    """The state of a share partition was begun anew since it was read."""

    code = ErrorCode.FENCED_STATE_EPOCH
