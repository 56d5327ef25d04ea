package ottla.compat;

import static ottla.compat.Cluster.bytes;
import static ottla.compat.Cluster.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Transactions with the newest client, which adds partitions without asking (transaction version 2). */
final class TransactionScenarios {
    private static final Map<String, Object> COMMITTED = Map.of("isolation.level", "read_committed");
    private static final int PARTITIONS = 3;
    private static final int LETTERS = 300;
    private static final int BATCH = 20;

    private TransactionScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("transactions_are_whole_or_nothing", TransactionScenarios::wholeOrNothing);
        all.put("an_open_transaction_holds_readers_back", TransactionScenarios::open);
        all.put("offsets_move_with_their_transaction", TransactionScenarios::offsets);
        all.put("a_producer_that_was_replaced_is_fenced", TransactionScenarios::fenced);
        all.put("a_transaction_that_takes_too_long_is_aborted", TransactionScenarios::late);
        all.put("transactions_are_described_and_listed", TransactionScenarios::described);
        all.put("consume_transform_produce", cluster -> transform(cluster, List.of()));
        for (String signal : List.of("SIGTERM", "SIGKILL")) {
            all.put("consume_transform_produce_through_" + signal, cluster -> transform(cluster, List.of(signal, signal)));
        }
        return all;
    }

    private static KafkaProducer<byte[], byte[]> producer(Cluster cluster, String name, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("transactional.id", name);
        var producer = cluster.producer(settings);
        producer.initTransactions();
        return producer;
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, int partition, String letter) {
        producer.send(new ProducerRecord<>(topic, partition, null, bytes(letter)));
    }

    /** The first `count` letters that who reads only what is committed finds in a partition. */
    private static List<String> committed(Cluster cluster, String topic, int partition, int count) {
        try (var consumer = cluster.consumer(COMMITTED)) {
            TopicPartition place = new TopicPartition(topic, partition);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            return Cluster.poll(consumer, count).stream().map(found -> text(found.value())).toList();
        }
    }

    private static long end(Cluster cluster, String topic, IsolationLevel level) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        var asked = cluster.admin.listOffsets(Map.of(place, OffsetSpec.latest()), new ListOffsetsOptions(level));
        return Expect.success(asked.partitionResult(place)).offset();
    }

    private static void awaitDecided(Cluster cluster, String topic) throws Exception {
        Topics.await(
                () -> end(cluster, topic, IsolationLevel.READ_COMMITTED)
                        == end(cluster, topic, IsolationLevel.READ_UNCOMMITTED),
                "a transaction is still open");
    }

    private static void wholeOrNothing(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(PARTITIONS);
        try (var producer = producer(cluster, cluster.newName(), Map.of())) {
            for (int number = 0; number < 10; number++) {
                producer.beginTransaction();
                for (int partition = 0; partition < PARTITIONS; partition++) {
                    send(producer, topic, partition, "letter " + number);
                }
                if (number % 3 == 0) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        List<String> kept = List.of("letter 1", "letter 2", "letter 4", "letter 5", "letter 7", "letter 8");
        for (int partition = 0; partition < PARTITIONS; partition++) {
            Expect.equal(kept, committed(cluster, topic, partition, kept.size()), "partition " + partition);
        }
    }

    private static void open(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        try (var slow = producer(cluster, cluster.newName(), Map.of()); var plain = cluster.producer(Map.of())) {
            slow.beginTransaction();
            Expect.success(slow.send(new ProducerRecord<>(topic, bytes("slow"))));
            Expect.success(plain.send(new ProducerRecord<>(topic, bytes("plain"))));
            Expect.equal(0L, end(cluster, topic, IsolationLevel.READ_COMMITTED), "the last stable offset");
            Expect.equal(2L, end(cluster, topic, IsolationLevel.READ_UNCOMMITTED), "the end");
            slow.commitTransaction();
        }
        Expect.equal(List.of("slow", "plain"), committed(cluster, topic, 0, 2), "letters");
    }

    private static void offsets(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        TopicPartition place = new TopicPartition(topic, 0);
        String group = cluster.newName();
        Map<String, Object> settings = new HashMap<>(COMMITTED);
        settings.put("group.id", group);
        try (var producer = producer(cluster, cluster.newName(), Map.of()); var consumer = cluster.consumer(settings)) {
            consumer.assign(List.of(place));
            for (boolean commits : List.of(true, false)) {
                producer.beginTransaction();
                send(producer, topic, 0, "letter");
                var moved = Map.of(place, new OffsetAndMetadata(commits ? 5 : 9, "here"));
                producer.sendOffsetsToTransaction(moved, consumer.groupMetadata());
                if (commits) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                // Who reads committed records waits until a pending offset is decided.
                OffsetAndMetadata found = consumer.committed(java.util.Set.of(place)).get(place);
                Expect.equal(5L, found.offset(), "the group's offset");
                Expect.equal("here", found.metadata(), "its metadata");
            }
        }
    }

    private static void fenced(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String name = cluster.newName();
        try (var zombie = producer(cluster, name, Map.of())) {
            zombie.beginTransaction();
            Expect.success(zombie.send(new ProducerRecord<>(topic, bytes("zombie"))));
            try (var living = producer(cluster, name, Map.of())) {
                living.beginTransaction();
                send(living, topic, 0, "living");
                living.commitTransaction();
                Expect.failure(ProducerFencedException.class, zombie::commitTransaction);
            }
        }
        Expect.equal(List.of("living"), committed(cluster, topic, 0, 1), "letters");
    }

    private static void late(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        try (var producer = producer(cluster, cluster.newName(), Map.of("transaction.timeout.ms", "1000"))) {
            producer.beginTransaction();
            Expect.success(producer.send(new ProducerRecord<>(topic, bytes("late"))));
            Topics.await(
                    () -> end(cluster, topic, IsolationLevel.READ_COMMITTED) == 2, "it is not aborted");
            boolean failed = false;
            try {
                producer.commitTransaction();
            } catch (KafkaException expected) {
                failed = true;
            }
            Expect.that(failed, "the commit of an aborted transaction succeeded");
        }
        try (var producer = producer(cluster, cluster.newName(), Map.of())) {
            producer.beginTransaction();
            send(producer, topic, 0, "in time");
            producer.commitTransaction();
        }
        Expect.equal(List.of("in time"), committed(cluster, topic, 0, 1), "letters");
    }

    private static void described(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String name = cluster.newName();
        try (var producer = producer(cluster, name, Map.of())) {
            producer.beginTransaction();
            Expect.success(producer.send(new ProducerRecord<>(topic, bytes("letter"))));
            TransactionDescription open =
                    Expect.success(cluster.admin.describeTransactions(List.of(name)).description(name));
            Expect.equal(TransactionState.ONGOING, open.state(), "state");
            Expect.equal(java.util.Set.of(new TopicPartition(topic, 0)), open.topicPartitions(), "partitions");
            boolean listed = Expect.success(cluster.admin.listTransactions().all()).stream()
                    .anyMatch(one -> one.transactionalId().equals(name));
            Expect.that(listed, name + " is not listed");
            producer.commitTransaction();
        }
    }

    /** Each letter of the source is answered once, though the program starts again in the middle of transactions. */
    private static void transform(Cluster cluster, List<String> signals) throws Exception {
        String source = cluster.newTopic(PARTITIONS);
        String target = cluster.newTopic(PARTITIONS);
        String group = cluster.newName();
        String name = cluster.newName();
        try (var producer = cluster.producer(Map.of())) {
            for (int number = 0; number < LETTERS; number++) {
                send(producer, source, number % PARTITIONS, Integer.toString(number));
            }
        }
        List<String> left = new ArrayList<>(signals);
        int incarnations = 0;
        while (!work(cluster, source, target, group, name, left, incarnations++)) {
            Expect.that(incarnations < 20, "it begins again and again");
        }
        awaitDecided(cluster, target);
        List<Integer> answers = new ArrayList<>();
        try (var consumer = cluster.consumer(COMMITTED)) {
            consumer.assign(Cluster.partitions(target, PARTITIONS));
            consumer.seekToBeginning(consumer.assignment());
            for (ConsumerRecord<byte[], byte[]> found : Cluster.poll(consumer, LETTERS)) {
                answers.add(Integer.parseInt(text(found.value())));
            }
            Expect.equal(0, consumer.poll(Duration.ofMillis(500)).count(), "answers too many");
        }
        Expect.equal(LETTERS, answers.size(), "answers");
        Expect.equal(LETTERS, (int) answers.stream().distinct().count(), "different answers");
    }

    /** True when everything is done; false when it gave up and is to be started again. */
    private static boolean work(
            Cluster cluster, String source, String target, String group, String name, List<String> signals,
            int incarnation) throws Exception {
        Map<String, Object> settings = new HashMap<>(COMMITTED);
        settings.putAll(Map.of("group.id", group, "group.instance.id", name, "max.poll.records", BATCH));
        try (var producer = producer(cluster, name, Map.of()); var consumer = cluster.consumer(settings)) {
            consumer.subscribe(List.of(source));
            int transactions = 0;
            while (true) {
                var found = consumer.poll(Duration.ofMillis(200));
                if (found.isEmpty()) {
                    if (isDone(consumer, source)) {
                        return true;
                    }
                    continue;
                }
                producer.beginTransaction();
                for (var letter : found) {
                    producer.send(new ProducerRecord<>(target, letter.partition(), null, letter.value()));
                }
                producer.sendOffsetsToTransaction(ends(found), consumer.groupMetadata());
                if (++transactions == 3 && !signals.isEmpty()) {
                    cluster.askForRestart(signals.remove(0));
                    cluster.awaitRestarted();
                }
                if (transactions == 2 && incarnation < 2) {
                    producer.close(Duration.ZERO); // as a crash would: its transaction stays open
                    return false;
                }
                producer.commitTransaction();
            }
        } catch (KafkaException gaveUp) {
            return false;
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> ends(
            Iterable<ConsumerRecord<byte[], byte[]>> found) {
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (var letter : found) {
            TopicPartition place = new TopicPartition(letter.topic(), letter.partition());
            ends.put(place, new OffsetAndMetadata(letter.offset() + 1));
        }
        return ends;
    }

    private static boolean isDone(KafkaConsumer<byte[], byte[]> consumer, String source) {
        long read = 0;
        var places = new java.util.HashSet<>(Cluster.partitions(source, PARTITIONS));
        for (OffsetAndMetadata one : consumer.committed(places).values()) {
            read += one == null ? 0 : one.offset();
        }
        return read == LETTERS;
    }
}
