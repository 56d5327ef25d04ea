"""Readers who click on articles: a click stream that is the same in every run.

Whoever it is about, the program is what any service between two topics looks like: it reads
`articles.clean` as a member of a group and writes `articles.clicks`, and commits both in one
transaction.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import confluent_kafka
from confluent_kafka import TopicPartition

from examples.news import topics

INTERESTS: Final[Mapping[str, frozenset[str]]] = {
    "ada": frozenset({"technology", "science"}),
    "bohumil": frozenset({"sport", "health"}),
    "cecile": frozenset({"culture", "city"}),
    "dimitri": frozenset({"politics", "business"}),
    "emine": frozenset({"climate", "energy"}),
    "farid": frozenset({"transport", "city"}),
    "grete": frozenset({"education", "science"}),
    "hana": frozenset({"health", "politics"}),
}
# Out of 256: most of what is interesting, and some of what is not.
_LIKELY: Final = 150
_UNLIKELY: Final = 12
_BATCH: Final = 200
_PATIENCE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Click:
    """A reader has opened an article."""

    reader: str
    article: str


def clicks_on(article: Mapping[str, Any]) -> list[Click]:
    """The readers who open an article: random, but the same in every run."""
    if not article.keys() >= {"id", "topics"}:
        return []  # whatever it is
    return [
        Click(reader, article["id"])
        for reader, interests in INTERESTS.items()
        if _chance(reader, article["id"])
        < (_LIKELY if interests.intersection(article["topics"]) else _UNLIKELY)
    ]


def _chance(reader: str, article: str) -> int:
    return hashlib.sha256(f"{reader} {article}".encode()).digest()[0]


class Readers:
    """Owns a place in `articles.clean` and turns what comes there into clicks, exactly once."""

    def __init__(self, address: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "transactional.id": "news-readers"}
        )
        self._producer.init_transactions(_PATIENCE_S)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "news-readers",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        # Where the group has come to. Assigned, not subscribed: nobody shares this work, so there
        # is no member to wait for.
        place = TopicPartition(topics.CLEAN, 0, confluent_kafka.OFFSET_STORED)
        self._consumer.assign([place])

    def click(self, wait_s: float) -> int:
        """Click on what is there, up to the end of the topic; how many clicks that made.

        It is over, too, when nothing has come for `wait_s`.
        """
        clicked = 0
        is_over = False
        while not is_over:
            articles, is_over = self._take(wait_s)
            if articles:
                clicked += self._write([click for one in articles for click in clicks_on(one)])
        return clicked

    def close(self) -> None:
        self._consumer.close()
        del self._producer

    def _take(self, wait_s: float) -> tuple[list[topics.Value], bool]:
        """Some articles, and whether there are no more."""
        taken: list[topics.Value] = []
        while len(taken) < _BATCH:
            message = self._consumer.poll(wait_s)
            if message is None or topics.is_at_end(message):
                return taken, True
            taken.append(topics.value_of(message))
        return taken, False

    def _write(self, clicks: Sequence[Click]) -> int:
        self._producer.begin_transaction()
        for click in clicks:
            self._producer.produce(topics.CLICKS, json.dumps(asdict(click)), click.reader)
        self._producer.send_offsets_to_transaction(
            self._consumer.position(self._consumer.assignment()),
            self._consumer.consumer_group_metadata(),
            _PATIENCE_S,
        )
        self._producer.commit_transaction(_PATIENCE_S)
        return len(clicks)
