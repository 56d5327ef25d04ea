package ottla.compat;

import static ottla.compat.Cluster.bytes;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;

import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** A producer and a reader that go on while their broker is ended and started again. */
final class RestartScenarios {
    private static final int PARTITIONS = 3;
    private static final int ROUNDS = 4;
    private static final int LETTERS_A_ROUND = 3000;

    private RestartScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        for (String signal : List.of("SIGTERM", "SIGKILL")) {
            all.put("an_idempotent_producer_through_" + signal, cluster -> produceThrough(cluster, signal));
            all.put("a_reader_through_" + signal, cluster -> readThrough(cluster, signal));
        }
        return all;
    }

    private static void produceThrough(Cluster cluster, String signal) throws Exception {
        String topic = cluster.newTopic(PARTITIONS);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = cluster.producer(Map.of("batch.size", "2000", "linger.ms", "1"))) {
            for (int round = 0; round < ROUNDS; round++) {
                for (int number = 0; number < LETTERS_A_ROUND; number++) {
                    if (number == LETTERS_A_ROUND / 2 && round > 0) {
                        cluster.awaitRestarted();
                    }
                    int letter = sent.size();
                    sent.add(producer.send(new ProducerRecord<>(
                            topic, letter % PARTITIONS, null, bytes(Integer.toString(letter)))));
                    if (number == LETTERS_A_ROUND / 2 + 1 && round < ROUNDS - 1) {
                        sent.get(letter - 100).get(); // it is under way: some have been answered, some not
                        cluster.askForRestart(signal);
                    }
                }
            }
            for (var place : sent) {
                Expect.success(place);
            }
        }
        int[] next = {0, 1, 2};
        for (var found : cluster.readAll(topic, PARTITIONS, ROUNDS * LETTERS_A_ROUND)) {
            int letter = Integer.parseInt(Cluster.text(found.value()));
            Expect.equal(next[found.partition()], letter, "the next of partition " + found.partition());
            Expect.equal(found.offset(), sent.get(letter).get().offset(), "the offset that was told");
            next[found.partition()] += PARTITIONS;
        }
    }

    private static void readThrough(Cluster cluster, String signal) throws Exception {
        TopicPartition partition = new TopicPartition(cluster.newTopic(1), 0);
        try (var producer = cluster.producer(Map.of()); var consumer = cluster.consumer(Map.of())) {
            consumer.assign(List.of(partition));
            int next = 0;
            for (int round = 0; round < 3; round++) {
                for (int number = 0; number < 100; number++) {
                    Expect.success(producer.send(new ProducerRecord<>(partition.topic(), bytes("letter"))));
                }
                for (var found : Cluster.poll(consumer, 100)) {
                    Expect.equal((long) next++, found.offset(), "offset");
                }
                cluster.askForRestart(signal);
                cluster.awaitRestarted();
            }
            Expect.equal(300, next, "records");
        }
    }
}
