package ottla.compat;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The cluster under test, and clients of it with the library's defaults unless a scenario says otherwise. */
final class Cluster implements AutoCloseable {
    private final String address;
    private final String run = Long.toString(System.nanoTime(), 36);
    private int topicCount;
    final Admin admin;

    Cluster(String address) {
        this.address = address;
        this.admin = admin(Map.of());
    }

    String address() {
        return address;
    }

    String host() {
        return address.substring(0, address.lastIndexOf(':'));
    }

    int port() {
        return Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
    }

    Admin admin(Map<String, Object> settings) {
        return Admin.create(with(Map.of(), settings));
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        return new KafkaProducer<>(with(Map.of(), settings), new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        Map<String, Object> ours = Map.of("enable.auto.commit", "false", "auto.offset.reset", "earliest");
        return new KafkaConsumer<>(with(ours, settings), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    KafkaShareConsumer<byte[], byte[]> shareConsumer(Map<String, Object> settings) {
        return new KafkaShareConsumer<>(
                with(Map.of(), settings), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Map<String, Object> with(Map<String, Object> ours, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(ours);
        all.put("bootstrap.servers", address);
        all.putAll(settings);
        return all;
    }

    /** A name that no other scenario has used. */
    String newName() {
        return "scenario-" + run + "-" + topicCount++;
    }

    String newTopic(int partitions) throws Exception {
        return newTopic(partitions, Map.of());
    }

    String newTopic(int partitions, Map<String, String> settings) throws Exception {
        return newTopic(newName(), partitions, settings);
    }

    String newTopic(String name, int partitions, Map<String, String> settings) throws Exception {
        NewTopic topic = new NewTopic(name, Optional.of(partitions), Optional.empty()).configs(settings);
        Expect.success(admin.createTopics(List.of(topic)).all());
        Topics.awaitPartitions(admin, name, partitions);
        return name;
    }

    static List<TopicPartition> partitions(String topic, int count) {
        return IntStream.range(0, count).mapToObj(index -> new TopicPartition(topic, index)).toList();
    }

    /** Everything in a topic, which must be exactly `count` records. */
    List<ConsumerRecord<byte[], byte[]>> readAll(String topic, int partitions, int count) {
        return readAll(topic, partitions, count, Map.of());
    }

    List<ConsumerRecord<byte[], byte[]>> readAll(
            String topic, int partitions, int count, Map<String, Object> settings) {
        try (var consumer = consumer(settings)) {
            Collection<TopicPartition> all = partitions(topic, partitions);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            List<ConsumerRecord<byte[], byte[]>> found = poll(consumer, count);
            long end = consumer.endOffsets(all).values().stream().mapToLong(Long::longValue).sum();
            long start = consumer.beginningOffsets(all).values().stream().mapToLong(Long::longValue).sum();
            Expect.equal((long) count, end - start, "records that the offsets of " + topic + " speak of");
            return found;
        }
    }

    /** At least `count` records, or an error when they do not come. */
    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.nanoTime() + Duration.ofSeconds(Expect.PATIENCE_S).toNanos();
        while (found.size() < count) {
            Expect.that(System.nanoTime() < deadline, "only " + found.size() + " of " + count + " records came");
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        }
        return found;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Whoever runs this program ends the broker with this signal and starts it again. */
    void askForRestart(String signal) {
        Main.print(Map.of("restart", signal));
    }

    /** Returns once the broker that was asked for is up again. */
    void awaitRestarted() throws IOException {
        Expect.equal("restarted", Main.readLine(), "the answer to a wish for a restart");
    }

    @Override
    public void close() {
        admin.close(Duration.ofSeconds(5));
    }
}
