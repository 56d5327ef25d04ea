package ottla.compat;

import static ottla.compat.Cluster.bytes;
import static ottla.compat.Cluster.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** Records that wait in topics with delay.enable, which Kafka's broker does not have. */
final class WaitingScenarios {
    static final Map<String, String> DELAYS = Map.of("delay.enable", "true");
    static final long HOUR_MS = 3_600_000;
    static final long EARLY_MS = 2; // the clock of the broker and that of this program are the same one
    private static final List<String> ISOLATION_LEVELS = List.of("read_uncommitted", "read_committed");
    private static final int HIDDEN = 60;
    private static final int LOOKED_AT_BYTES = 1 << 20; // of a log, for one response
    private static final int PARTITIONS = 2;
    private static final int RECORDS = 300;
    private static final long ROOM_MS = 2000; // enough to send everything before the first record is due
    private static final long RESTART_MS = 10_000; // enough with a restart of the broker in between
    private static final int TRANSACTIONS = 30;

    private WaitingScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("waiting_records_fill_many_responses", WaitingScenarios::manyResponses);
        all.put("waiting_records_are_passed_over_from_any_offset", WaitingScenarios::seeks);
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            all.put("waiting_and_ordinary_records_with_codec_" + codec, cluster -> interleaved(cluster, codec, null));
        }
        for (String signal : List.of("SIGTERM", "SIGKILL")) {
            all.put("waiting_and_ordinary_records_through_" + signal, cluster -> interleaved(cluster, "none", signal));
        }
        all.put("waiting_records_are_cancelled", WaitingScenarios::cancelled);
        all.put("waiting_is_refused_with_the_whole_batch", WaitingScenarios::refused);
        all.put("waiting_records_of_transactions", WaitingScenarios::transactions);
        all.put("waiting_records_come_to_share_groups", WaitingScenarios::shared);
        return all;
    }

    private static TopicPartition newPlace(Cluster cluster) throws Exception {
        return new TopicPartition(cluster.newTopic(1, DELAYS), 0);
    }

    static ProducerRecord<byte[], byte[]> record(TopicPartition place, String value) {
        return new ProducerRecord<>(place.topic(), place.partition(), null, bytes(value));
    }

    static ProducerRecord<byte[], byte[]> record(TopicPartition place, String value, String header, Object content) {
        var made = record(place, value);
        made.headers().add(header, bytes(content.toString()));
        return made;
    }

    private static ProducerRecord<byte[], byte[]> cancel(TopicPartition place, long ticket) {
        return record(place, "", "ottla.cancel", ticket);
    }

    static Map<String, String> headers(ConsumerRecord<byte[], byte[]> found) {
        Map<String, String> headers = new LinkedHashMap<>();
        for (Header header : found.headers()) {
            Expect.equal(null, headers.put(header.key(), text(header.value())), "another header " + header.key());
        }
        return headers;
    }

    private static List<String> sortedValues(List<ConsumerRecord<byte[], byte[]>> found) {
        return found.stream().map(one -> text(one.value())).sorted().toList();
    }

    /** Everything from where the consumer is to the record with this value, which must be the last one. */
    private static List<ConsumerRecord<byte[], byte[]>> readTo(KafkaConsumer<byte[], byte[]> consumer, String last) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        while (found.isEmpty() || !text(found.get(found.size() - 1).value()).equals(last)) {
            found.addAll(Cluster.poll(consumer, 1));
        }
        return found;
    }

    /** More than fifty responses in a row show no record: nothing of that is an error. */
    private static void manyResponses(Cluster cluster) throws Exception {
        var settings = Map.of("delay.enable", "true", "max.message.bytes", "2000000");
        TopicPartition place = new TopicPartition(cluster.newTopic(1, settings), 0);
        String large = "x".repeat(LOOKED_AT_BYTES);
        try (var producer = cluster.producer(Map.of("max.request.size", "2000000"))) {
            Expect.success(producer.send(record(place, "first")));
            for (int number = 0; number < HIDDEN; number++) {
                Expect.success(producer.send(record(place, large, "ottla.delay-ms", HOUR_MS)));
            }
            Expect.success(producer.send(record(place, "last")));
        }
        for (String isolation : ISOLATION_LEVELS) {
            for (String protocol : List.of("classic", "consumer")) { // either has a consumer of its own
                readOver(cluster, place, Map.of("isolation.level", isolation, "group.protocol", protocol));
            }
        }
        try (var member = ShareScenarios.member(
                cluster, ShareScenarios.newGroup(cluster), "implicit", place.topic())) {
            Expect.equal(List.of("first", "last"), sortedValues(ShareScenarios.poll(2, member)), "shared records");
        }
    }

    private static void readOver(Cluster cluster, TopicPartition place, Map<String, Object> settings) {
        try (var consumer = cluster.consumer(settings)) {
            consumer.assign(List.of(place));
            Set<Long> passed = new HashSet<>(); // positions behind responses without a record
            List<Long> shown = new ArrayList<>();
            for (int polls = 0; shown.size() < 2; polls++) {
                Expect.that(polls < 10 * HIDDEN, "the last record does not come");
                var found = consumer.poll(Duration.ofMillis(200));
                found.forEach(one -> shown.add(one.offset()));
                long position = consumer.position(place);
                if (found.isEmpty() && position > 1) {
                    passed.add(position);
                }
            }
            Expect.equal(List.of(0L, HIDDEN + 1L), shown, "offsets of the records with " + settings);
            Expect.that(passed.size() > 50, "only " + passed.size() + " responses showed no record");
            Expect.equal(HIDDEN + 2L, consumer.position(place), "position");
        }
    }

    private static void seeks(Cluster cluster) throws Exception {
        TopicPartition place = newPlace(cluster);
        long firstMs = System.currentTimeMillis() / 1000 * 1000 - HOUR_MS;
        List<String> batches = List.of("s", "hhh", "hsh", "hh", "s", "hhh"); // shown and hidden records
        try (var producer = cluster.producer(Map.of("linger.ms", "10000"))) {
            int number = 0;
            for (String batch : batches) {
                for (char kind : batch.toCharArray()) {
                    var record = new ProducerRecord<byte[], byte[]>(
                            place.topic(), 0, firstMs + number * 1000L, null, bytes("" + number++));
                    if (kind == 'h') {
                        record.headers().add("ottla.delay-ms", bytes("" + HOUR_MS));
                    }
                    producer.send(record);
                }
                producer.flush();
            }
        }
        String all = String.join("", batches);
        for (String isolation : ISOLATION_LEVELS) {
            try (var consumer = cluster.consumer(Map.of("isolation.level", isolation, "fetch.max.wait.ms", "10"))) {
                consumer.assign(List.of(place));
                Expect.equal(Map.of(place, 0L), consumer.beginningOffsets(List.of(place)), "beginning");
                Expect.equal(Map.of(place, (long) all.length()), consumer.endOffsets(List.of(place)), "end");
                for (int offset = 0; offset < all.length(); offset++) {
                    expectFrom(consumer, place, offset, all, firstMs);
                }
            }
        }
    }

    /** A seek and a search by time find the first shown record from an offset on. */
    private static void expectFrom(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition place, int offset, String all, long firstMs) {
        List<Long> expected = new ArrayList<>();
        for (int shown = all.indexOf('s', offset); shown >= 0; shown = all.indexOf('s', shown + 1)) {
            expected.add((long) shown);
        }
        List<Long> found = new ArrayList<>();
        consumer.seek(place, offset);
        for (int polls = 0; consumer.position(place) < all.length(); polls++) {
            Expect.that(polls < 100, "position " + consumer.position(place) + " does not move on");
            for (var one : consumer.poll(Duration.ofMillis(200))) {
                found.add(one.offset());
                Expect.equal(Long.toString(one.offset()), text(one.value()), "the record at " + one.offset());
            }
        }
        Expect.equal(expected, found, "offsets from " + offset + " on");
        Expect.equal(0L, consumer.currentLag(place).getAsLong(), "lag at the end");
        OffsetAndTimestamp first = consumer.offsetsForTimes(Map.of(place, firstMs + offset * 1000L)).get(place);
        Expect.equal(expected.isEmpty() ? null : expected.get(0), first == null ? null : first.offset(), "by time");
        if (first != null) {
            Expect.equal(firstMs + first.offset() * 1000, first.timestamp(), "time of it");
        }
    }

    /** A record as it was sent, and when it is to be delivered; ordinary ones at once, `dueMs` is 0. */
    private record Sent(ProducerRecord<byte[], byte[]> record, long dueMs, Future<RecordMetadata> accepted) {}

    /** Each comes once, when it is due; `signal` ends the broker while they are sent, unless it is null. */
    private static void interleaved(Cluster cluster, String codec, String signal) throws Exception {
        long roomMs = signal == null ? ROOM_MS : RESTART_MS;
        String topic = cluster.newTopic(PARTITIONS, DELAYS);
        try (var producer = cluster.producer(Map.of("compression.type", codec));
                var consumer = cluster.consumer(Map.of())) {
            List<Sent> sent = new ArrayList<>();
            for (int number = 0; number < RECORDS; number++) {
                sent.add(send(producer, new TopicPartition(topic, number % PARTITIONS), number, roomMs));
                if (signal != null && number == RECORDS / 2) {
                    Expect.success(sent.get(number / 2).accepted()); // some have been answered, some not
                    cluster.askForRestart(signal);
                }
            }
            if (signal != null) {
                cluster.awaitRestarted();
            }
            consumer.assign(Cluster.partitions(topic, PARTITIONS));
            Set<String> seen = new HashSet<>();
            long[] latestMs = new long[PARTITIONS];
            while (seen.size() < RECORDS) {
                for (var found : Cluster.poll(consumer, 1)) {
                    Expect.that(seen.add(text(found.value())), text(found.value()) + " came twice");
                    Sent one = sent.get(Integer.parseInt(text(found.value())));
                    compare(one, found);
                    if (one.record().headers().lastHeader("ottla.deliver-at") != null) {
                        Expect.that(one.dueMs() >= latestMs[found.partition()], "one that was due earlier came later");
                        latestMs[found.partition()] = one.dueMs();
                    }
                }
            }
            for (int partition = 0; partition < PARTITIONS; partition++) {
                producer.send(record(new TopicPartition(topic, partition), "end"));
            }
            List<String> rest = sortedValues(Cluster.poll(consumer, PARTITIONS));
            Expect.equal(Collections.nCopies(PARTITIONS, "end"), rest, "records behind all of them");
        }
    }

    /** One record is ordinary, the next one has a delay, and the one after that a time. */
    private static Sent send(KafkaProducer<byte[], byte[]> producer, TopicPartition place, int number, long roomMs) {
        long nowMs = System.currentTimeMillis();
        long delayMs = roomMs + number * 37 % 1000;
        String value = Integer.toString(number);
        var record = new ProducerRecord<byte[], byte[]>(
                place.topic(), place.partition(), nowMs, bytes("key " + number % 7), bytes(value));
        record.headers().add("number", bytes(value));
        if (number % 3 == 1) {
            record.headers().add("ottla.delay-ms", bytes("" + delayMs));
        } else if (number % 3 == 2) {
            record.headers().add("ottla.deliver-at", bytes("" + (nowMs + delayMs)));
        }
        return new Sent(record, number % 3 == 0 ? 0 : nowMs + delayMs, producer.send(record));
    }

    private static void compare(Sent sent, ConsumerRecord<byte[], byte[]> found) throws Exception {
        var record = sent.record();
        long accepted = Expect.success(sent.accepted()).offset();
        String value = text(record.value());
        Expect.equal(text(record.key()), text(found.key()), "key of " + value);
        Expect.equal(record.partition(), found.partition(), "partition of " + value);
        if (sent.dueMs() == 0) {
            Expect.equal(accepted, found.offset(), "offset of " + value);
            Expect.equal(record.timestamp(), found.timestamp(), "time of " + value);
            Expect.equal(Map.of("number", value), headers(found), "headers of " + value);
            return;
        }
        long earliestMs = sent.dueMs() - EARLY_MS;
        Expect.that(System.currentTimeMillis() >= earliestMs, value + " came early");
        Expect.that(found.timestamp() >= earliestMs, value + " has a time before it was due");
        Expect.that(found.offset() > accepted, value + " has an offset before its ticket");
        var expected = Map.of(
                "number", value, "ottla.ticket", "" + accepted, "ottla.sent-at", record.timestamp().toString());
        Expect.equal(expected, headers(found), "headers of " + value);
    }

    private static void cancelled(Cluster cluster) throws Exception {
        TopicPartition place = newPlace(cluster);
        try (var producer = cluster.producer(Map.of()); var consumer = cluster.consumer(Map.of())) {
            long cancelled = Expect.success(producer.send(record(place, "never", "ottla.delay-ms", 3000))).offset();
            long delivered = Expect.success(producer.send(record(place, "later", "ottla.delay-ms", 3500))).offset();
            Expect.success(producer.send(cancel(place, cancelled)));
            expectRefused(producer.send(cancel(place, cancelled)), "ticket " + cancelled + " was cancelled");
            expectRefused(producer.send(cancel(place, 99)), "ticket 99 is unknown");
            consumer.assign(List.of(place));
            ConsumerRecord<byte[], byte[]> found = Cluster.poll(consumer, 1).get(0);
            Expect.equal("later", text(found.value()), "the first record that comes");
            Expect.equal(3L, found.offset(), "its offset, behind two that waited and one cancel");
            expectRefused(producer.send(cancel(place, delivered)), "ticket " + delivered + " was delivered");
        }
    }

    private static void expectRefused(Future<?> sent, String reason) throws Exception {
        String message = Expect.failure(InvalidRecordException.class, sent).getMessage();
        Expect.that(message.contains(reason), "not '" + reason + "': " + message);
    }

    private static void refused(Cluster cluster) throws Exception {
        TopicPartition place = newPlace(cluster);
        List<Map.Entry<String, String>> wrong = List.of(
                Map.entry("ottla.delay-ms", "soon"), Map.entry("ottla.delay-ms", "-1"),
                Map.entry("ottla.deliver-at", Long.toString(Long.MAX_VALUE)), Map.entry("ottla.cron", "every day"),
                Map.entry("ottla.timezone", "Europe/Prague"));
        try (var producer = cluster.producer(Map.of("linger.ms", "10000")); var consumer = cluster.consumer(Map.of())) {
            for (var header : wrong) {
                var before = producer.send(record(place, "before"));
                var bad = producer.send(record(place, "bad", header.getKey(), header.getValue()));
                var behind = producer.send(record(place, "behind", "ottla.delay-ms", 100));
                producer.flush();
                Expect.failure(InvalidRecordException.class, bad);
                Expect.failure(KafkaException.class, before); // what this client says of the others in a batch
                Expect.failure(KafkaException.class, behind);
                Expect.equal(Map.of(place, 0L), consumer.endOffsets(List.of(place)), "end");
            }
            var good = producer.send(record(place, "good", "ottla.delay-ms", 500));
            producer.flush();
            Expect.equal(0L, Expect.success(good).offset(), "offset of the first good record");
            consumer.assign(List.of(place));
            Expect.equal(List.of("good"), sortedValues(readTo(consumer, "good")), "records");
        }
    }

    private static void transactions(Cluster cluster) throws Exception {
        TopicPartition place = newPlace(cluster);
        List<String> shown = new ArrayList<>(List.of("behind", "end", "held"));
        List<String> committed = new ArrayList<>(shown);
        try (var producer = cluster.producer(Map.of("transactional.id", cluster.newName()));
                var plain = cluster.producer(Map.of()); var consumer = cluster.consumer(Map.of())) {
            producer.initTransactions();
            for (int number = 0; number < TRANSACTIONS; number++) {
                String name = Integer.toString(number);
                producer.beginTransaction();
                producer.send(record(place, "ordinary " + name));
                producer.send(record(place, "delayed " + name, "ottla.delay-ms", 10 + number % 7 * 20));
                shown.add("ordinary " + name);
                if (number % 3 == 2) {
                    producer.flush();
                    producer.abortTransaction();
                    continue;
                }
                producer.commitTransaction();
                shown.add("delayed " + name);
                committed.addAll(List.of("ordinary " + name, "delayed " + name));
            }
            long ticket = Expect.success(plain.send(record(place, "behind", "ottla.delay-ms", 1000))).offset();
            producer.beginTransaction();
            expectRefused(producer.send(cancel(place, ticket)), "a transaction cannot cancel");
            producer.abortTransaction();
            producer.beginTransaction();
            Expect.success(producer.send(record(place, "held", "ottla.delay-ms", 10)));
            consumer.assign(List.of(place));
            List<String> early = sortedValues(readTo(consumer, "behind"));
            Expect.that(!early.contains("held"), "a record of an open transaction was delivered");
            producer.commitTransaction();
            Expect.success(plain.send(record(place, "end", "ottla.delay-ms", 500)));
        }
        Map<String, List<String>> expected = Map.of("read_uncommitted", shown, "read_committed", committed);
        for (String isolation : ISOLATION_LEVELS) {
            try (var consumer = cluster.consumer(Map.of("isolation.level", isolation))) {
                consumer.assign(List.of(place));
                List<String> values = expected.get(isolation).stream().sorted().toList();
                Expect.equal(values, sortedValues(readTo(consumer, "end")), "records with " + isolation);
            }
        }
    }

    private static void shared(Cluster cluster) throws Exception {
        TopicPartition place = newPlace(cluster);
        try (var producer = cluster.producer(Map.of("linger.ms", "10000"));
                var member = ShareScenarios.member(
                        cluster, ShareScenarios.newGroup(cluster), "explicit", place.topic())) {
            long dueMs = System.currentTimeMillis() + ROOM_MS;
            producer.send(record(place, "far", "ottla.delay-ms", HOUR_MS));
            producer.send(record(place, "accepted"));
            var waiting = producer.send(record(place, "waiting", "ottla.deliver-at", dueMs));
            producer.send(record(place, "released"));
            producer.flush();
            var found = ShareScenarios.work(member, 4, one -> {
                boolean again = text(one.value()).equals("released") && one.deliveryCount().orElseThrow() == 1;
                boolean early = System.currentTimeMillis() < dueMs - EARLY_MS;
                Expect.that(!early || !text(one.value()).equals("waiting"), "a record came early");
                return again ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
            });
            Expect.equal(List.of("accepted", "released", "released", "waiting"), sortedValues(found), "deliveries");
            Expect.equal("waiting", text(found.get(3).value()), "the last one");
            String ticket = Long.toString(Expect.success(waiting).offset());
            Expect.equal(ticket, headers(found.get(3)).get("ottla.ticket"), "its ticket");
            ShareScenarios.expectNothing(member);
        }
    }
}
