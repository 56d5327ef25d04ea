"""Celery over kombu's Kafka transport: tasks, and a worker in a thread that carries them out.

python celery_program.py ADDRESS COUNT FILE    each task writes its number as a line of FILE
"""

import os
import sys
import threading
from pathlib import Path

from celery import Celery

address, count, file = sys.argv[1:]
app = Celery("compat", broker=f"confluentkafka://{address}")
app.conf.update(
    task_default_queue="work",
    worker_hijack_root_logger=False,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)
is_done = threading.Event()
written: list[int] = []


@app.task(name="write")
def write(number: int) -> None:
    with Path(file).open("a") as out:
        out.write(f"{number}\n")
    written.append(number)
    if len(written) >= int(count):
        is_done.set()


for number in range(int(count)):
    write.delay(number)

worker = app.Worker(pool="solo", without_gossip=True, without_mingle=True, without_heartbeat=True)
threading.Thread(target=worker.start, daemon=True).start()
# A worker in a thread does not always end when it is asked to; its work is what counts here.
os._exit(0 if is_done.wait(120) else 1)
