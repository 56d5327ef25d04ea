"""Handlers that are imported when somebody first asks what they answer.

Their messages are many classes; a broker is ready to be asked without them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from ottla.broker.routes import RequestContext
from ottla.protocol.api import ApiKey

Answering = Callable[[Any, RequestContext], Any]


class LateHandlers(ABC):
    """Makes all of them at the first request for one."""

    def __init__(self) -> None:
        self._handlers: Mapping[ApiKey, Answering] = {}

    @abstractmethod
    def _make_handlers(self) -> Mapping[ApiKey, Answering]:
        """Who answers which request; imports them."""

    def answer(self, key: ApiKey, request: Any, context: RequestContext) -> Any:
        if not self._handlers:
            self._handlers = self._make_handlers()
        return self._handlers[key](request, context)
