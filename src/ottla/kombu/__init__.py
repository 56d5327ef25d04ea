"""A kombu transport, for Celery: importing this makes `ottla://HOST:PORT` a broker URL."""

from kombu.transport import TRANSPORT_ALIASES

from ottla.kombu.transport import Transport as Transport

TRANSPORT_ALIASES["ottla"] = "ottla.kombu:Transport"
