"""A stream's reader and the offsets that it commits to a group."""

from concurrent.futures import Future

import pytest

from ottla.client.errors import ClientError, ConnectionLost
from ottla.spark.source import StreamReader

END = {"orders": {"0": 3}}


@pytest.mark.parametrize("problem", [ConnectionLost("gone"), TimeoutError()])
def test_offsets_whose_commit_failed_are_committed_again_later(
    problem: ClientError | TimeoutError,
) -> None:
    reader = object.__new__(StreamReader)
    failed: Future[None] = Future()
    failed.set_exception(problem)
    reader.__dict__.update(_committing=failed, _committed=END, _commit_again_s=0.0)
    reader._finish_commit("g")
    assert reader._committed is None
    assert reader._commit_again_s > 0
    reader._committed = END
    reader._finish_commit("g")
    assert reader._committed == END, "nothing was under way"
