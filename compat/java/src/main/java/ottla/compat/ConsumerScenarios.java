package ottla.compat;

import static ottla.compat.Cluster.bytes;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.TimeoutException;

/** Reading by assignment: where to begin, where to go on, when to wait. */
final class ConsumerScenarios {
    /** A while ago, in whole seconds; not so long that retention would take the records. */
    private static final long FIRST_MS = System.currentTimeMillis() / 1000 * 1000 - 3_600_000;

    private ConsumerScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("seek_by_offset", ConsumerScenarios::seekByOffset);
        all.put("seek_to_beginning_and_end", ConsumerScenarios::seekToBounds);
        all.put("seek_by_time", ConsumerScenarios::seekByTime);
        all.put("reset_when_the_offset_is_gone", ConsumerScenarios::reset);
        all.put("read_committed_reads_everything_that_is_decided", ConsumerScenarios::readCommitted);
        all.put("pause_and_resume", ConsumerScenarios::pause);
        all.put("a_waiting_fetch_ends_when_a_record_comes", ConsumerScenarios::longPoll);
        all.put("few_records_a_poll", ConsumerScenarios::fewRecords);
        all.put("partitions_and_topics_are_listed", ConsumerScenarios::listed);
        all.put("offsets_of_what_is_not_there", ConsumerScenarios::absent);
        all.put("a_topic_is_deleted_and_made_again_under_a_reader", ConsumerScenarios::remade);
        return all;
    }

    /** A topic of one partition with ten records, a second apart. */
    private static TopicPartition tenRecords(Cluster cluster) throws Exception {
        TopicPartition partition = new TopicPartition(cluster.newTopic(1), 0);
        append(cluster, partition, 0, 10);
        return partition;
    }

    private static void append(Cluster cluster, TopicPartition partition, int from, int to) throws Exception {
        try (var producer = cluster.producer(Map.of("batch.size", "0"))) {
            for (int number = from; number < to; number++) {
                long timestamp = FIRST_MS + number * 1000L;
                Expect.success(producer.send(new ProducerRecord<>(
                        partition.topic(), partition.partition(), timestamp, null, bytes("" + number))));
            }
        }
    }

    private static void expectNext(KafkaConsumer<byte[], byte[]> consumer, long offset) {
        ConsumerRecord<byte[], byte[]> first = Cluster.poll(consumer, 1).get(0);
        Expect.equal(offset, first.offset(), "offset of the next record");
        Expect.equal(Long.toString(offset), Cluster.text(first.value()), "the next record");
    }

    private static void seekByOffset(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        try (var consumer = cluster.consumer(Map.of())) {
            consumer.assign(List.of(partition));
            for (long offset : new long[] {9, 0, 5, 4}) {
                consumer.seek(partition, offset);
                Expect.equal(offset, consumer.position(partition), "position");
                expectNext(consumer, offset);
            }
        }
    }

    private static void seekToBounds(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        try (var consumer = cluster.consumer(Map.of())) {
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            Expect.equal(10L, consumer.position(partition), "position at the end");
            Expect.that(consumer.poll(Duration.ofMillis(300)).isEmpty(), "nothing at the end");
            append(cluster, partition, 10, 11);
            expectNext(consumer, 10);
            consumer.seekToBeginning(List.of(partition));
            Expect.equal(0L, consumer.position(partition), "position at the beginning");
            expectNext(consumer, 0);
            Expect.equal(Map.of(partition, 0L), consumer.beginningOffsets(List.of(partition)), "beginning");
            Expect.equal(Map.of(partition, 11L), consumer.endOffsets(List.of(partition)), "end");
        }
    }

    private static void seekByTime(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        try (var consumer = cluster.consumer(Map.of())) {
            consumer.assign(List.of(partition));
            long[][] expected = {{0, 0}, {FIRST_MS, 0}, {FIRST_MS + 1, 1}, {FIRST_MS + 4000, 4}, {FIRST_MS + 8999, 9}};
            for (long[] pair : expected) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, pair[0])).get(partition);
                Expect.equal(pair[1], found.offset(), "offset at " + pair[0]);
                Expect.equal(FIRST_MS + pair[1] * 1000, found.timestamp(), "time of it");
                consumer.seek(partition, found.offset());
                expectNext(consumer, pair[1]);
            }
            Expect.equal(null, consumer.offsetsForTimes(Map.of(partition, FIRST_MS + 9001)).get(partition),
                    "nothing is that late");
        }
    }

    private static void reset(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        Expect.success(cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3))).all());
        Map<String, Long> expected = Map.of("earliest", 3L, "latest", 10L, "by_duration:P9999D", 3L);
        for (String policy : expected.keySet()) {
            for (long lost : new long[] {1, 100}) {
                try (var consumer = cluster.consumer(Map.of("auto.offset.reset", policy))) {
                    consumer.assign(List.of(partition));
                    consumer.seek(partition, lost);
                    long deadline = System.nanoTime() + Duration.ofSeconds(10).toNanos();
                    int read = 0;
                    while (consumer.position(partition) != 10 && System.nanoTime() < deadline) {
                        read += consumer.poll(Duration.ofMillis(100)).count();
                    }
                    Expect.equal(10L, consumer.position(partition), "position with " + policy);
                    Expect.equal(10 - expected.get(policy), (long) read, "records that were read");
                }
            }
        }
        try (var consumer = cluster.consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(partition));
            Expect.failure(NoOffsetForPartitionException.class, () -> consumer.poll(Duration.ofSeconds(10)));
            consumer.seek(partition, 1);
            Expect.failure(OffsetOutOfRangeException.class, () -> {
                for (int tries = 0; tries < 100; tries++) {
                    consumer.poll(Duration.ofMillis(100));
                }
            });
        }
    }

    private static void readCommitted(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        var committed = Map.<String, Object>of("isolation.level", "read_committed");
        Expect.equal(10, cluster.readAll(partition.topic(), 1, 10, committed).size(), "records");
        try (var consumer = cluster.consumer(committed)) {
            consumer.assign(List.of(partition));
            Expect.equal(Map.of(partition, 10L), consumer.endOffsets(List.of(partition)), "end");
        }
    }

    private static void pause(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(2);
        List<TopicPartition> both = Cluster.partitions(topic, 2);
        try (var consumer = cluster.consumer(Map.of())) {
            consumer.assign(both);
            consumer.pause(List.of(both.get(0)));
            append(cluster, both.get(0), 0, 5);
            append(cluster, both.get(1), 0, 5);
            for (var found : Cluster.poll(consumer, 5)) {
                Expect.equal(1, found.partition(), "the partition that is not paused");
            }
            consumer.resume(consumer.paused());
            for (var found : Cluster.poll(consumer, 5)) {
                Expect.equal(0, found.partition(), "the partition that was paused");
            }
        }
    }

    private static void longPoll(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        try (var consumer = cluster.consumer(Map.of("fetch.max.wait.ms", "10000"));
                var producer = cluster.producer(Map.of())) {
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            Expect.that(consumer.poll(Duration.ofMillis(500)).isEmpty(), "nothing yet");
            producer.send(new ProducerRecord<>(partition.topic(), bytes("now")));
            long begun = System.nanoTime();
            Cluster.poll(consumer, 1);
            Expect.that(System.nanoTime() - begun < Duration.ofSeconds(5).toNanos(), "the fetch waited on");
        }
    }

    private static void fewRecords(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        try (var consumer = cluster.consumer(Map.of("max.poll.records", "3", "max.partition.fetch.bytes", "1"))) {
            consumer.assign(List.of(partition));
            for (long offset = 0; offset < 10; ) {
                for (var found : consumer.poll(Duration.ofSeconds(5))) {
                    Expect.equal(offset++, found.offset(), "offset");
                }
            }
            Expect.equal(0L, consumer.currentLag(partition).getAsLong(), "lag");
        }
    }

    private static void listed(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(4);
        try (var consumer = cluster.consumer(Map.of())) {
            Expect.equal(4, consumer.partitionsFor(topic).size(), "partitions");
            Expect.equal(4, consumer.listTopics().get(topic).size(), "partitions in the list");
        }
    }

    private static void absent(Cluster cluster) throws Exception {
        try (var consumer = cluster.consumer(Map.of(
                "allow.auto.create.topics", "false", "default.api.timeout.ms", "1500", "request.timeout.ms", "1000"))) {
            TopicPartition nowhere = new TopicPartition(cluster.newName(), 0);
            Expect.failure(TimeoutException.class, () -> consumer.endOffsets(Set.of(nowhere)));
            TopicPartition impossible = new TopicPartition("a b", 0);
            Expect.failure(InvalidTopicException.class, () -> consumer.endOffsets(Set.of(impossible)));
            Expect.equal(List.of(), consumer.partitionsFor(nowhere.topic()), "partitions of no topic");
        }
    }

    private static void remade(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        try (var consumer = cluster.consumer(Map.of("metadata.max.age.ms", "500"))) {
            consumer.assign(List.of(partition));
            Cluster.poll(consumer, 10);
            Expect.success(cluster.admin.deleteTopics(List.of(partition.topic())).all());
            Topics.awaitGone(cluster.admin, partition.topic());
            Topics.create(cluster.admin, partition.topic(), 1);
            append(cluster, partition, 0, 3);
            expectNext(consumer, 0);
        }
    }
}
