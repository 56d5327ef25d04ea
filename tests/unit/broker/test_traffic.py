"""Totals by topic: names and ids together, and sums that never fall."""

from ottla.broker.traffic import TopicTraffic, Traffic

ID, GONE_ID = b"i" * 16, b"g" * 16
NAMES = {ID: "orders"}


def counted() -> Traffic:
    traffic = Traffic()
    for key, size_bytes in (("orders", 10), (ID, 5), ("gone", 100), (GONE_ID, 1000)):
        traffic[key].batches += 1
        traffic[key].records += 2
        traffic[key].size_bytes += size_bytes
    return traffic


def test_a_topic_is_counted_once_however_clients_call_it() -> None:
    assert counted().by_topic(NAMES) == {"orders": TopicTraffic(2, 4, 15)}


def test_a_deleted_topic_stays_in_the_sum_and_nowhere_else() -> None:
    traffic = counted()
    for _ in range(2):
        assert traffic.sum() == TopicTraffic(4, 8, 1115)
        traffic.by_topic(NAMES)
    assert set(traffic) == {"orders", ID}
