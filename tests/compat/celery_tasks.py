"""A Celery application for tests: `BROKER` is its broker's address, `OUTPUT` a file of lines."""

import os
import time

from celery import Celery

import ottla.kombu  # noqa: F401  # makes ottla:// known

app = Celery("celery_tasks", broker=f"ottla://{os.environ['BROKER']}")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=2,
    task_default_queue=os.environ["QUEUE"],
)


def say(*words: object) -> None:
    """Write a line in one call."""
    line = " ".join(str(word) for word in words)
    handle = os.open(os.environ["OUTPUT"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(handle, f"{line} {time.monotonic()}\n".encode())
    os.close(handle)


@app.task  # type: ignore[untyped-decorator]
def note(number: int) -> None:
    say("note", number)


@app.task(bind=True, max_retries=2)  # type: ignore[untyped-decorator]
def fail_once(self, number: int) -> None:  # type: ignore[no-untyped-def]
    say("tried", number, self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0.5)
