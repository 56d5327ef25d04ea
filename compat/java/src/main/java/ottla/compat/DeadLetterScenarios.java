package ottla.compat;

import static ottla.compat.Cluster.text;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Dead letters of share groups, which Kafka's broker has from 4.4 on, and some headers of them never. */
final class DeadLetterScenarios {
    private static final Map<String, String> TAKES_DEAD_LETTERS = Map.of("errors.deadletterqueue.group.enable", "true");
    private static final int PARTITIONS = 2;

    private DeadLetterScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("dead_letters_of_every_cause", DeadLetterScenarios::everyCause);
        return all;
    }

    /** Records end as their values say; what waits before it is rejected is a record like any other. */
    private static void everyCause(Cluster cluster) throws Exception {
        String target = cluster.newTopic("dlq." + cluster.newName(), PARTITIONS, TAKES_DEAD_LETTERS);
        TopicPartition place = new TopicPartition(cluster.newTopic(PARTITIONS, WaitingScenarios.DELAYS), 1);
        String group = ShareScenarios.newGroup(
                cluster, "errors.deadletterqueue.topic.name", target, "share.delivery.count.limit", "2");
        try (var producer = cluster.producer(Map.of())) {
            List<ProducerRecord<byte[], byte[]>> records = List.of(
                    WaitingScenarios.record(place, "accepted"),
                    WaitingScenarios.record(place, "rejected"),
                    WaitingScenarios.record(place, "delivery-limit"),
                    WaitingScenarios.record(place, "expired", "ottla.ttl-ms", 0),
                    WaitingScenarios.record(place, "waiting", "ottla.delay-ms", 500));
            for (var record : records) {
                record.headers().add("mine", record.value());
                producer.send(record);
            }
        }
        List<ConsumerRecord<byte[], byte[]>> delivered;
        try (var member = ShareScenarios.member(cluster, group, "explicit", place.topic())) {
            delivered = ShareScenarios.work(member, 5, one -> switch (text(one.value())) {
                case "accepted" -> AcknowledgeType.ACCEPT;
                case "delivery-limit" -> AcknowledgeType.RELEASE;
                default -> AcknowledgeType.REJECT;
            });
            ShareScenarios.expectNothing(member);
        }
        Map<String, ConsumerRecord<byte[], byte[]>> died = new HashMap<>(); // by value; the last delivery of each
        delivered.forEach(one -> died.put(text(one.value()), one));
        List<String> values = new ArrayList<>();
        for (var letter : cluster.readAll(target, PARTITIONS, 4)) {
            values.add(text(letter.value()));
            Expect.equal(place.partition(), letter.partition(), "partition of a dead letter");
            expectHeaders(letter, place, group, died.get(text(letter.value())));
        }
        values.sort(null);
        Expect.equal(List.of("delivery-limit", "expired", "rejected", "waiting"), values, "dead letters");
    }

    /** The headers that docs/share-groups.md names, beside those of the record; `died` is null for an expired one. */
    private static void expectHeaders(
            ConsumerRecord<byte[], byte[]> letter, TopicPartition place, String group,
            ConsumerRecord<byte[], byte[]> died) {
        String value = text(letter.value());
        Map<String, String> found = WaitingScenarios.headers(letter);
        Map<String, String> expected = new HashMap<>(Map.of(
                "mine", value,
                "__dlq.errors.topic", place.topic(),
                "__dlq.errors.partition", Integer.toString(place.partition()),
                "__dlq.errors.group", group,
                "__dlq.errors.offset", died == null ? "3" : Long.toString(died.offset()),
                "__dlq.errors.delivery.count", died == null ? "0" : died.deliveryCount().orElseThrow().toString(),
                "__dlq.errors.message", switch (value) {
                    case "delivery-limit" -> "delivered as often as the group allows";
                    case "expired" -> "not delivered before the end of its ottla.ttl-ms";
                    default -> "rejected by a consumer";
                },
                "ottla.dlq.cause", value.equals("waiting") ? "rejected" : value));
        if (died != null) {
            expected.put("ottla.dlq.sent-at", Long.toString(died.timestamp()));
        } else {
            Expect.that(Long.parseLong(found.remove("ottla.dlq.sent-at")) <= letter.timestamp(), "when it was sent");
        }
        if (value.equals("waiting")) {
            expected.put("ottla.ticket", "4");
            expected.put("ottla.sent-at", WaitingScenarios.headers(died).get("ottla.sent-at"));
        }
        Expect.equal(expected, found, "headers of the dead letter of " + value);
    }
}
