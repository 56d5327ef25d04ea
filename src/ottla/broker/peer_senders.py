"""Other brokers as senders of requests: who they are, and which of their requests is the newest."""

from collections.abc import Callable
from hmac import compare_digest

from ottla.cluster.image import ClusterImage
from ottla.errors import ClusterAuthorizationFailed, InvalidRequest
from ottla.model import NO_UUID, Uuid


class PeerSenders:
    """Knows brokers by the tokens of their registrations, and the last number of each."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._sequences: dict[Uuid, int] = {}

    def check(self, token: Uuid, sequence: int) -> None:
        """Raise unless a broker of this cluster sends this, and has sent nothing later."""
        self.check_token(token)
        last = self._sequences.get(token, 0)
        if sequence < last:
            raise InvalidRequest("the broker has sent a later request: this one is outdated")
        if sequence > last:
            known = {one.token for one in self._image().registered.values()}
            self._sequences = {one: n for one, n in self._sequences.items() if one in known}
            self._sequences[token] = sequence

    def check_token(self, token: Uuid) -> None:
        """Raise unless it is the token of a registered broker."""
        registered = self._image().registered.values()
        if token == NO_UUID or not any(
            one.token and compare_digest(one.token, token) for one in registered
        ):
            raise ClusterAuthorizationFailed("only brokers of this cluster send this request")
