"""Errors of queues; those of the cluster are `ottla.client.errors.ClientError`."""


class QueueError(Exception):
    """A queue cannot do what it was asked for; the text says what to do."""


class QueueEmpty(QueueError):
    """There was no message within the time to wait."""


class QueueClosed(QueueError):
    """The queue was closed."""


class LeaseLost(QueueError):
    """The message is not this consumer's any more: it is delivered again, perhaps elsewhere."""


class AlreadySettled(QueueError):
    """The message was acknowledged, given back or rejected before."""


class DelayNotEnabled(QueueError):
    """The topic does not hold records back."""
