package ottla.compat;

import static ottla.compat.Cluster.bytes;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;

/** What goes in comes out: every codec, every shape of record, every size. */
final class RecordScenarios {
    private static final int BATCH_HEADER_BYTES = 61;
    private static final int DEFAULT_LIMIT_BYTES = 1048588;

    private RecordScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            all.put("records_keep_everything_with_codec_" + codec, cluster -> everything(cluster, codec));
            all.put("sizes_up_to_the_limit_with_codec_" + codec, cluster -> sizes(cluster, codec));
        }
        for (String acks : List.of("0", "1", "all")) {
            all.put("acks_" + acks, cluster -> acks(cluster, acks));
        }
        all.put("null_and_empty_keys_values_and_headers", RecordScenarios::nullsAndEmpties);
        all.put("create_time_is_kept", RecordScenarios::createTime);
        all.put("log_append_time_is_the_brokers", RecordScenarios::logAppendTime);
        all.put("timestamps_too_far_ahead_are_refused", RecordScenarios::futureTimestamp);
        all.put("the_default_limit_to_the_byte", cluster -> toTheByte(cluster, Map.of(), DEFAULT_LIMIT_BYTES));
        all.put("a_topics_limit_to_the_byte",
                cluster -> toTheByte(cluster, Map.of("max.message.bytes", "100000"), 100_000));
        all.put("records_larger_than_a_fetch", RecordScenarios::largerThanFetch);
        all.put("two_hundred_partitions", RecordScenarios::manyPartitions);
        all.put("offsets_of_one_partition_are_consecutive", RecordScenarios::consecutiveOffsets);
        all.put("four_producers_at_once", RecordScenarios::severalProducers);
        all.put("without_idempotence", RecordScenarios::withoutIdempotence);
        all.put("a_topic_is_made_by_its_first_record", RecordScenarios::autoCreated);
        all.put("produce_to_a_partition_that_is_not_there", RecordScenarios::unknownPartition);
        all.put("produce_to_a_name_that_cannot_be", RecordScenarios::impossibleName);
        return all;
    }

    private static void everything(Cluster cluster, String codec) throws Exception {
        String topic = cluster.newTopic(3);
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        for (int number = 0; number < 900; number++) {
            byte[] value = new byte[number * 7 % 1500];
            Arrays.fill(value, (byte) number);
            List<Header> headers = List.of(
                    new RecordHeader("number", bytes(Integer.toString(number))),
                    new RecordHeader("number", bytes("again")));
            letters.add(new ProducerRecord<>(topic, null, bytes("key-" + number % 31), value, headers));
        }
        var settings = Map.<String, Object>of("compression.type", codec, "linger.ms", "20");
        sendAndCompare(cluster, topic, 3, letters, settings);
    }

    private static void sizes(Cluster cluster, String codec) throws Exception {
        String topic = cluster.newTopic(1, Map.of("max.message.bytes", "300000"));
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        for (int size : new int[] {0, 1, 127, 128, 4095, 4096, 16_383, 16_384, 65_535, 65_536, 250_000}) {
            letters.add(new ProducerRecord<>(topic, noise(size)));
        }
        sendAndCompare(cluster, topic, 1, letters, Map.of("compression.type", codec));
    }

    private static void acks(Cluster cluster, String acks) throws Exception {
        String topic = cluster.newTopic(2);
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        for (int number = 0; number < 200; number++) {
            letters.add(new ProducerRecord<>(topic, number % 2, null, bytes("letter " + number)));
        }
        boolean idempotent = acks.equals("all");
        var settings = Map.<String, Object>of("acks", acks, "enable.idempotence", idempotent);
        try (var producer = cluster.producer(settings)) {
            for (RecordMetadata place : send(producer, letters)) {
                Expect.equal(!acks.equals("0"), place.hasOffset(), "an offset comes back");
            }
        }
        compare(letters, cluster.readAll(topic, 2, letters.size()), true);
    }

    private static void nullsAndEmpties(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        byte[] empty = new byte[0];
        for (byte[] key : Arrays.asList(null, empty, bytes("key"))) {
            for (byte[] value : Arrays.asList(null, empty, bytes("value"))) {
                letters.add(new ProducerRecord<>(topic, 0, key, value));
                List<Header> headers = List.of(
                        new RecordHeader("", empty), new RecordHeader("null", null), new RecordHeader("ключ", bytes("é")));
                letters.add(new ProducerRecord<>(topic, 0, key, value, headers));
            }
        }
        sendAndCompare(cluster, topic, 1, letters, Map.of());
    }

    private static void createTime(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        long now = System.currentTimeMillis();
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        for (long timestamp : new long[] {now, now - 1, 0, now + 60_000, 1_000_000_000_000L}) {
            letters.add(new ProducerRecord<>(topic, 0, timestamp, null, bytes("at " + timestamp)));
        }
        for (var found : sendAndCompare(cluster, topic, 1, letters, Map.of("linger.ms", "100"))) {
            Expect.equal(TimestampType.CREATE_TIME, found.timestampType(), "timestamp type");
        }
    }

    private static void logAppendTime(Cluster cluster) throws Exception {
        for (String codec : List.of("none", "zstd")) {
            String topic = cluster.newTopic(1, Map.of("message.timestamp.type", "LogAppendTime"));
            List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
            for (int number = 0; number < 10; number++) {
                letters.add(new ProducerRecord<>(topic, 0, 1_000L + number, null, bytes("letter " + number)));
            }
            long before = System.currentTimeMillis();
            List<RecordMetadata> places;
            try (var producer = cluster.producer(Map.of("compression.type", codec, "linger.ms", "50"))) {
                places = send(producer, letters);
            }
            long after = System.currentTimeMillis();
            for (var found : cluster.readAll(topic, 1, letters.size())) {
                Expect.equal(TimestampType.LOG_APPEND_TIME, found.timestampType(), "timestamp type");
                Expect.that(before <= found.timestamp() && found.timestamp() <= after, "the broker's time");
                Expect.equal(found.timestamp(), places.get((int) found.offset()).timestamp(), "time that was told");
            }
        }
    }

    private static void futureTimestamp(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1, Map.of("message.timestamp.after.max.ms", "1000"));
        long later = System.currentTimeMillis() + 3_600_000;
        try (var producer = cluster.producer(Map.of())) {
            Expect.failure(InvalidTimestampException.class,
                    producer.send(new ProducerRecord<>(topic, 0, later, null, bytes("too early"))));
            Expect.success(producer.send(new ProducerRecord<>(topic, bytes("in time"))));
        }
        cluster.readAll(topic, 1, 1);
    }

    private static void toTheByte(Cluster cluster, Map<String, String> config, int limit) throws Exception {
        String topic = cluster.newTopic(1, config);
        int largest = largestValue(limit);
        List<ProducerRecord<byte[], byte[]>> letters = List.of(
                new ProducerRecord<>(topic, noise(largest - 1)), new ProducerRecord<>(topic, noise(largest)));
        try (var producer = cluster.producer(Map.of("max.request.size", "4000000"))) {
            send(producer, letters);
            Expect.failure(RecordTooLargeException.class,
                    producer.send(new ProducerRecord<>(topic, noise(largest + 1))));
            Expect.success(producer.send(new ProducerRecord<>(topic, bytes("still works"))));
        }
        cluster.readAll(topic, 1, 3);
    }

    private static void largerThanFetch(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(2, Map.of("max.message.bytes", "20000000"));
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        for (int size : new int[] {100, 12_000_000, 100, 3_000_000}) {
            letters.add(new ProducerRecord<>(topic, 0, null, noise(size)));
            letters.add(new ProducerRecord<>(topic, 1, null, noise(size / 2)));
        }
        var room = Map.<String, Object>of("max.request.size", "20000000", "buffer.memory", "80000000");
        try (var producer = cluster.producer(room)) {
            send(producer, letters);
        }
        var small = Map.<String, Object>of("max.partition.fetch.bytes", "1000", "fetch.max.bytes", "1000");
        compare(letters, cluster.readAll(topic, 2, letters.size(), small), true);
    }

    private static void manyPartitions(Cluster cluster) throws Exception {
        int partitions = 200;
        String topic = cluster.newTopic(partitions);
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        for (int number = 0; number < 20 * partitions; number++) {
            letters.add(new ProducerRecord<>(topic, number % partitions, null, bytes("letter " + number)));
        }
        sendAndCompare(cluster, topic, partitions, letters, Map.of("linger.ms", "20"));
    }

    private static void consecutiveOffsets(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        try (var producer = cluster.producer(Map.of())) {
            for (int number = 0; number < 50; number++) {
                RecordMetadata place = Expect.success(producer.send(new ProducerRecord<>(topic, bytes("one by one"))));
                Expect.equal((long) number, place.offset(), "offset");
            }
        }
    }

    private static void severalProducers(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int who = 0; who < 4; who++) {
            producers.add(cluster.producer(Map.of("batch.size", "400")));
        }
        for (int number = 0; number < 500; number++) {
            for (int who = 0; who < 4; who++) {
                sent.add(producers.get(who).send(new ProducerRecord<>(topic, bytes("" + who), bytes("" + number))));
            }
        }
        for (var place : sent) {
            Expect.success(place);
        }
        producers.forEach(KafkaProducer::close);
        Map<String, Integer> next = new TreeMap<>();
        for (var found : cluster.readAll(topic, 1, 2000)) {
            String who = Cluster.text(found.key());
            int expected = next.getOrDefault(who, 0);
            Expect.equal(Integer.toString(expected), Cluster.text(found.value()), "next of producer " + who);
            next.put(who, expected + 1);
        }
    }

    private static void withoutIdempotence(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        List<ProducerRecord<byte[], byte[]>> letters = new ArrayList<>();
        for (int number = 0; number < 300; number++) {
            letters.add(new ProducerRecord<>(topic, bytes("letter " + number)));
        }
        var settings = Map.<String, Object>of("enable.idempotence", "false",
                "max.in.flight.requests.per.connection", "5", "batch.size", "200");
        sendAndCompare(cluster, topic, 1, letters, settings);
    }

    private static void autoCreated(Cluster cluster) throws Exception {
        String topic = cluster.newName();
        try (var producer = cluster.producer(Map.of())) {
            Expect.success(producer.send(new ProducerRecord<>(topic, bytes("first"))));
        }
        cluster.readAll(topic, 1, 1);
    }

    private static void unknownPartition(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(2);
        try (var producer = cluster.producer(Map.of("max.block.ms", "1500"))) {
            Expect.failure(TimeoutException.class, producer.send(new ProducerRecord<>(topic, 7, null, bytes("lost"))));
        }
    }

    private static void impossibleName(Cluster cluster) throws Exception {
        try (var producer = cluster.producer(Map.of())) {
            Expect.failure(InvalidTopicException.class, producer.send(new ProducerRecord<>("a b", bytes("lost"))));
        }
    }

    private static List<ConsumerRecord<byte[], byte[]>> sendAndCompare(
            Cluster cluster, String topic, int partitions, List<ProducerRecord<byte[], byte[]>> letters,
            Map<String, Object> settings) throws Exception {
        List<RecordMetadata> places;
        try (var producer = cluster.producer(settings)) {
            places = send(producer, letters);
        }
        List<ProducerRecord<byte[], byte[]>> placed = new ArrayList<>();
        for (int index = 0; index < letters.size(); index++) {
            var letter = letters.get(index);
            placed.add(new ProducerRecord<>(topic, places.get(index).partition(), places.get(index).timestamp(),
                    letter.key(), letter.value(), letter.headers()));
        }
        var found = cluster.readAll(topic, partitions, letters.size());
        compare(placed, found, false);
        return found;
    }

    private static List<RecordMetadata> send(
            KafkaProducer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> letters) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (var letter : letters) {
            sent.add(producer.send(letter));
        }
        List<RecordMetadata> places = new ArrayList<>();
        for (var place : sent) {
            places.add(Expect.success(place));
        }
        return places;
    }

    /** The same records in the same order per partition, at offsets 0, 1, 2 and so on. */
    private static void compare(List<ProducerRecord<byte[], byte[]>> letters,
            List<ConsumerRecord<byte[], byte[]>> found, boolean anyTime) {
        Map<Integer, List<ProducerRecord<byte[], byte[]>>> expected = new TreeMap<>();
        for (var letter : letters) {
            expected.computeIfAbsent(letter.partition(), none -> new ArrayList<>()).add(letter);
        }
        Map<Integer, Integer> next = new TreeMap<>();
        for (var record : found) {
            int place = next.merge(record.partition(), 1, Integer::sum) - 1;
            Expect.equal((long) place, record.offset(), "offset in partition " + record.partition());
            var letter = expected.get(record.partition()).get(place);
            String what = " of " + record.partition() + "@" + place;
            Expect.that(Arrays.equals(letter.key(), record.key()), "key" + what);
            Expect.that(Arrays.equals(letter.value(), record.value()), "value" + what);
            Expect.equal(letter.headers(), record.headers(), "headers" + what);
            Expect.that(anyTime || letter.timestamp() == record.timestamp(), "timestamp" + what);
        }
        Expect.equal(letters.size(), found.size(), "records");
    }

    /** The largest value that a batch of one record without key can carry within `limit` bytes. */
    private static int largestValue(int limit) {
        int value = limit;
        while (BATCH_HEADER_BYTES + recordBytes(value) > limit) {
            value--;
        }
        Expect.equal(limit, BATCH_HEADER_BYTES + recordBytes(value), "a value that fills a batch");
        return value;
    }

    private static int recordBytes(int value) {
        int body = 5 + varintBytes(value) + value; // attributes, two deltas, no key, no headers
        return varintBytes(body) + body;
    }

    private static int varintBytes(int number) {
        int bytes = 1;
        for (int left = number << 1; left >= 128; left >>>= 7) {
            bytes++;
        }
        return bytes;
    }

    /** Bytes that do not compress, and are the same every time. */
    private static byte[] noise(int size) {
        byte[] noise = new byte[size];
        new java.util.Random(size).nextBytes(noise);
        return noise;
    }
}
