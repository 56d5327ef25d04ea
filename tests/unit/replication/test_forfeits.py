"""Replicas that a broker gives up before it is ready."""

from dataclasses import replace

from fakes import build
from fakes.cluster_images import CONFIG, after, cluster, gone, with_topic
from fakes.memory_files import MemoryFiles
from ottla.cluster.controller.brokers import note_ready, register_broker
from ottla.cluster.controller.leaders import Forfeit, begin_terms, forfeit, settle_leaders
from ottla.cluster.image import ClusterImage
from ottla.cluster.values import BrokerImage, Change, partition_key
from ottla.config import Durability, TopicConfig
from ottla.model import BrokerId, TopicPartition
from ottla.replication.forfeits import forfeits
from ottla.storage.log import Log

TWO = BrokerId(2)
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def opened(image: ClusterImage) -> ClusterImage:
    """The image in which leaders have begun."""
    topic = image.topics["orders"]
    changes = [
        Change(partition_key(topic.id, index), replace(one, is_new=False))
        for index, one in enumerate(topic.partitions)
    ]
    return image.apply(changes, image.revision)


def log(durability: Durability = Durability.FSYNC) -> Log:
    return build.log(MemoryFiles(), TopicConfig(durability=durability))


def found(
    image: ClusterImage,
    logs: dict[TopicPartition, Log],
    *,
    is_outdated: bool = False,
    lost_power: bool = False,
) -> list[tuple[int, bool]]:
    given_up = forfeits(image, TWO, logs, is_outdated=is_outdated, lost_power=lost_power)
    return [(one.tp.partition, one.has_log) for one in given_up]


def test_a_log_that_is_missing_is_given_up_unless_nothing_was_ever_written() -> None:
    image = opened(with_topic(cluster(1, 2), (1, 2), (2, 1)))
    assert found(image, {FIRST: log()}) == [(1, False)]
    assert found(image, {FIRST: log(), SECOND: log()}) == []
    assert found(with_topic(cluster(1, 2), (1, 2), (2, 1)), {}) == [], "no leader has begun"


def test_another_disk_gives_up_everything() -> None:
    image = opened(with_topic(cluster(1, 2), (1, 2), (1, 2)))
    logs = {FIRST: log(), SECOND: log()}
    assert found(image, logs, is_outdated=True) == [(0, False), (1, False)]
    alone = opened(with_topic(cluster(2), (2,)))
    assert found(alone, {FIRST: log()}, is_outdated=True) == [(0, False)]
    assert found(alone, {}) == [], "its broker knows what to do with a lost log"


def test_lost_power_gives_up_what_was_in_the_page_cache() -> None:
    image = opened(with_topic(cluster(1, 2), (1, 2), (1, 2)))
    logs = {FIRST: log(Durability.REPLICATED), SECOND: log()}
    assert found(image, logs, lost_power=True) == [(0, True)]
    assert found(image, logs) == []


def damaged() -> Log:
    files = MemoryFiles()
    whole = build.log(files)
    for _ in range(3):
        build.append(whole)
    files.flip(whole.directory / "00000000000000000000.log", 100)
    found = build.log(files)
    assert found.corrupt
    return found


def test_a_damaged_log_is_given_up_if_another_replica_has_everything() -> None:
    image = opened(with_topic(cluster(1, 2), (1, 2), (2, 1)))
    assert found(image, {FIRST: damaged(), SECOND: log()}) == [(0, True)]
    assert found(gone(image, 1), {FIRST: damaged(), SECOND: log()}) == [], "others have less"


def test_a_replica_that_is_not_in_sync_has_nothing_to_give_up() -> None:
    image = opened(with_topic(cluster(1, 2), (1, 2)))
    assert found(gone(image, 2), {}) == []


def restarted(image: ClusterImage) -> ClusterImage:
    """The image when broker 2 has registered again, and is not ready yet."""
    image = after(image, register_broker(image, BrokerImage(TWO, {})))
    return after(image, settle_leaders(image, CONFIG))


def test_whoever_gives_up_leaves_the_isr_and_the_eligible_replicas() -> None:
    config = {"min.insync.replicas": "2"}
    image = restarted(opened(with_topic(cluster(1, 2), (1, 2), config=config)))
    assert image.topics["orders"].partitions[0].elr == (2,)
    image = after(image, forfeit(image, TWO, [Forfeit(FIRST, has_log=False)]))
    partition = image.topics["orders"].partitions[0]
    assert (partition.isr, partition.elr, partition.unclean_epoch) == ((1,), (), -1)
    assert forfeit(image, TWO, [Forfeit(FIRST, has_log=False)]).changes == ()


def test_the_last_one_stays_if_it_has_a_log_and_its_election_is_unclean() -> None:
    image = restarted(gone(opened(with_topic(cluster(1, 2), (1, 2))), 1))
    assert image.topics["orders"].partitions[0].isr == (2,)
    given_up = [Forfeit(FIRST, has_log=True)]
    image = after(image, forfeit(image, TWO, given_up))
    partition = image.topics["orders"].partitions[0]
    assert (partition.isr, partition.unclean_epoch) == ((2,), partition.leader_epoch + 1)
    assert forfeit(image, TWO, given_up).changes == ()
    image = after(image, forfeit(image, TWO, [Forfeit(FIRST, has_log=False)]))
    assert image.topics["orders"].partitions[0].isr == (), "without a log there is nothing left"


def test_a_partition_that_it_leads_loses_its_leader_and_the_election_is_unclean() -> None:
    image = gone(opened(with_topic(cluster(1, 2), (2, 1))), 1)
    before = image.topics["orders"].partitions[0]
    image = after(image, register_broker(image, BrokerImage(TWO, {})))
    epoch = image.registered[TWO].epoch
    given_up = [Forfeit(FIRST, has_log=True)]
    image = after(image, forfeit(image, TWO, given_up))
    partition = image.topics["orders"].partitions[0]
    assert (partition.leader, partition.isr) == (None, (2,))
    assert partition.leader_epoch == before.leader_epoch + 1
    assert forfeit(image, TWO, given_up).changes == begin_terms(image, TWO, epoch).changes == ()
    image = after(image, note_ready(image, TWO, epoch))
    image = after(image, settle_leaders(image, CONFIG))
    partition = image.topics["orders"].partitions[0]
    assert (partition.leader, partition.unclean_epoch) == (2, partition.leader_epoch)
