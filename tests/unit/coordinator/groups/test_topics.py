"""Topics as consumer groups see them: by id, and by a fingerprint of what matters."""

import pytest

from fakes.topic_catalog import TopicCatalog
from ottla.coordinator.groups.topics import (
    IdPartition,
    by_topic,
    of_names,
    to_names,
    topics_fingerprint,
)


@pytest.fixture
def catalog() -> TopicCatalog:
    return TopicCatalog(t=2)


def test_a_fingerprint_changes_with_what_matters(catalog: TopicCatalog) -> None:
    marks = [topics_fingerprint({"t", "u"}, catalog.image)]
    catalog.create("u", 1)
    marks.append(topics_fingerprint({"t", "u"}, catalog.image))
    catalog.grow("u", 2)
    marks.append(topics_fingerprint({"t", "u"}, catalog.image))
    catalog.delete("u")
    catalog.create("u", 2)
    marks.append(topics_fingerprint({"t", "u"}, catalog.image))
    assert len(set(marks)) == 4
    catalog.create("other", 1)
    assert topics_fingerprint({"u", "t"}, catalog.image) == marks[-1]
    assert topics_fingerprint({"nothing"}, catalog.image) == 0


def test_names_and_ids_are_inverse_for_topics_that_exist(catalog: TopicCatalog) -> None:
    partitions = of_names({"t": [1, 0], "gone": [0]}, catalog.image)
    assert partitions == catalog.all_of("t")
    assert to_names(partitions, catalog.image) == {"t": [0, 1]}
    catalog.delete("t")
    assert to_names(partitions, catalog.image) == {}


def test_a_topic_that_is_created_again_has_other_partitions(catalog: TopicCatalog) -> None:
    before = catalog.all_of("t")
    catalog.delete("t")
    catalog.create("t", 2)
    assert catalog.all_of("t").isdisjoint(before)


def test_partitions_are_grouped_in_order(catalog: TopicCatalog) -> None:
    other = catalog.create("u", 3)
    first = catalog.image.topics["t"].id
    mixed = [IdPartition(other, 2), IdPartition(first, 1), IdPartition(other, 0)]
    assert list(by_topic(mixed).items()) == [(first, [1]), (other, [0, 2])]
