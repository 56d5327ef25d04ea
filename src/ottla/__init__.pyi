from ottla.work.async_queue import AsyncMessage as AsyncMessage
from ottla.work.async_queue import AsyncQueue as AsyncQueue
from ottla.work.errors import LeaseLost as LeaseLost
from ottla.work.errors import QueueEmpty as QueueEmpty
from ottla.work.errors import QueueError as QueueError
from ottla.work.puts import Receipt as Receipt
from ottla.work.queue import Message as Message
from ottla.work.queue import Queue as Queue

__version__: str
