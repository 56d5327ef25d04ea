"""FastStream: a handler that answers what it reads, in a group, until it has answered enough.

python faststream_program.py ADDRESS SOURCE TARGET COUNT
"""

import asyncio
import sys
from itertools import count

from faststream import FastStream
from faststream.confluent import KafkaBroker

address, source, target, wanted = sys.argv[1:]
broker = KafkaBroker(address)
app = FastStream(broker)
numbers = count(1)


@broker.subscriber(source, group_id="answers", auto_offset_reset="earliest")
@broker.publisher(target)
async def answer(number: int) -> int:
    if next(numbers) == int(wanted):
        asyncio.get_running_loop().call_later(1, app.exit)
    return number * 2


asyncio.run(app.run())
