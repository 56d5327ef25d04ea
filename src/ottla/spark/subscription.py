"""Options that name the topics or partitions to read: subscribe, subscribePattern, assign."""

import re
from dataclasses import dataclass
from typing import Final

from ottla.model import TopicPartition, topic_name_problem
from ottla.spark.option_reader import OptionReader, OptionRefused, parsed

SUBSCRIPTION_NAMES: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Topics:
    """All partitions of the named topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Every topic whose whole name matches."""

    pattern: str

    def matches(self, topic: str) -> bool:
        return re.fullmatch(_python_pattern(self.pattern), topic) is not None


@dataclass(frozen=True, slots=True)
class Assigned:
    """Individual partitions."""

    tps: tuple[TopicPartition, ...]


Subscription = Topics | TopicPattern | Assigned


def parse_subscription(options: OptionReader) -> Subscription:
    given = options.given(SUBSCRIPTION_NAMES)
    if len(given) != 1:
        raise OptionRefused(
            f"give one of {', '.join(SUBSCRIPTION_NAMES)}"
            + (f", not {' and '.join(given)}" if given else "")
        )
    text = options.text(given[0]) or ""
    if given[0] == "subscribe":
        names = tuple(sorted({part.strip() for part in text.split(",")}))
        for name in names:
            if problem := topic_name_problem(name):
                raise OptionRefused(f"subscribe={text}: {problem}")
        return Topics(names)
    if given[0] == "subscribePattern":
        parsed("subscribePattern", _check_pattern, text)
        return TopicPattern(text)
    found = options.json_object("assign")
    tps = [
        TopicPartition(topic, _index("assign", number))
        for topic, numbers in found.items()
        for number in (numbers if isinstance(numbers, list) else [None])
    ]
    if not tps:
        raise OptionRefused('assign names no partition; an example: {"topic":[0,1]}')
    return Assigned(tuple(sorted(set(tps))))


def topics_of(options: OptionReader) -> tuple[str, ...]:
    """The topics that are named; none for a pattern."""
    match parse_subscription(options):
        case Topics(names):
            return names
        case Assigned(tps):
            return tuple(sorted({tp.topic for tp in tps}))
        case TopicPattern():
            return ()


def reads_topic(subscription: Subscription, topic: str) -> bool:
    match subscription:
        case Topics(names):
            return topic in names
        case TopicPattern():
            return subscription.matches(topic)
        case Assigned(tps):
            return any(tp.topic == topic for tp in tps)


def _check_pattern(text: str) -> None:
    try:
        re.compile(_python_pattern(text))
    except re.error as problem:
        raise ValueError(f"it is not a regular expression ({problem})") from None


def _python_pattern(text: str) -> str:
    """A Java regular expression for Python: only named groups have another syntax."""
    return re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", text)


def _index(name: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise OptionRefused(f"{name}: {number!r} is not a partition")
    return number
