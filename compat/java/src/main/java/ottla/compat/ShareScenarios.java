package ottla.compat;

import static ottla.compat.Cluster.bytes;
import static ottla.compat.Cluster.text;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Function;
import java.util.stream.IntStream;

import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;

/** Share groups with KafkaShareConsumer. */
final class ShareScenarios {
    private static final int DELIVERIES_MAX = 5;

    private ShareScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("share_members_divide_one_partition", ShareScenarios::divide);
        all.put("share_several_partitions_and_more_members", ShareScenarios::several);
        all.put("share_released_records_come_again", ShareScenarios::release);
        all.put("share_rejected_records_do_not_come_again", ShareScenarios::reject);
        all.put("share_renewed_records_stay_with_their_member", ShareScenarios::renew);
        all.put("share_records_of_a_member_that_goes_come_to_another", ShareScenarios::leave);
        all.put("share_deliveries_are_limited", ShareScenarios::limited);
        all.put("share_aborted_records_are_not_delivered", ShareScenarios::committed);
        all.put("share_begins_at_the_end_by_default", ShareScenarios::latest);
        all.put("share_groups_are_described_and_listed", ShareScenarios::described);
        all.put("share_group_offsets_are_listed_and_altered", ShareScenarios::offsets);
        all.put("share_groups_are_deleted", ShareScenarios::deleted);
        return all;
    }

    /** A group that begins with the first record. */
    static String newGroup(Cluster cluster, String... more) throws Exception {
        String group = cluster.newName();
        List<AlterConfigOp> settings = new ArrayList<>();
        settings.add(set("share.auto.offset.reset", "earliest"));
        for (int index = 0; index < more.length; index += 2) {
            settings.add(set(more[index], more[index + 1]));
        }
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        Expect.success(cluster.admin.incrementalAlterConfigs(Map.of(resource, settings)).all());
        return group;
    }

    private static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    static KafkaShareConsumer<byte[], byte[]> member(Cluster cluster, String group, String mode, String topic) {
        var member = cluster.shareConsumer(Map.of("group.id", group, "share.acknowledgement.mode", mode));
        member.subscribe(List.of(topic));
        return member;
    }

    private static void send(Cluster cluster, String topic, int partitions, int count) throws Exception {
        try (var producer = cluster.producer(Map.of())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, number % partitions, null, bytes("record " + number)));
            }
        }
    }

    private static Set<String> records(int count) {
        return new TreeSet<>(IntStream.range(0, count).mapToObj(number -> "record " + number).toList());
    }

    /** Polls in turn until `count` records came; with the mode `implicit` the next poll accepts them. */
    @SafeVarargs
    static List<ConsumerRecord<byte[], byte[]>> poll(int count, KafkaShareConsumer<byte[], byte[]>... members) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long deadline = System.nanoTime() + Duration.ofSeconds(2 * Expect.PATIENCE_S).toNanos();
        while (found.size() < count) {
            Expect.that(System.nanoTime() < deadline, "only " + found.size() + " of " + count + " records came");
            for (var member : members) {
                member.poll(Duration.ofMillis(200)).forEach(found::add);
            }
        }
        return found;
    }

    static void expectNothing(KafkaShareConsumer<byte[], byte[]> member) {
        for (int times = 0; times < 5; times++) {
            Expect.equal(0, member.poll(Duration.ofMillis(200)).count(), "records that come again");
        }
    }

    private static void divide(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        send(cluster, topic, 1, 200);
        try (var one = member(cluster, group, "implicit", topic); var two = member(cluster, group, "implicit", topic)) {
            var found = poll(200, one, two);
            one.commitSync();
            two.commitSync();
            Expect.equal(200, found.size(), "records");
            Expect.equal(records(200), values(found), "records");
            expectNothing(one);
            expectNothing(two);
        }
    }

    private static Set<String> values(List<ConsumerRecord<byte[], byte[]>> found) {
        return new TreeSet<>(found.stream().map(one -> text(one.value())).toList());
    }

    private static void several(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(3);
        String group = newGroup(cluster);
        send(cluster, topic, 3, 300);
        try (var one = member(cluster, group, "implicit", topic); var two = member(cluster, group, "implicit", topic);
                var three = member(cluster, group, "implicit", topic);
                var four = member(cluster, group, "implicit", topic)) {
            var found = poll(300, one, two, three, four);
            Expect.equal(300, found.size(), "records");
            Expect.equal(records(300), values(found), "records");
        }
    }

    private static void release(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        send(cluster, topic, 1, 3);
        try (var member = member(cluster, group, "explicit", topic)) {
            List<ConsumerRecord<byte[], byte[]>> first = pollOnce(member);
            Expect.equal(records(3), values(first), "records");
            for (var one : first) {
                Expect.equal((short) 1, one.deliveryCount().orElseThrow(), "deliveries");
                boolean again = text(one.value()).equals("record 1");
                member.acknowledge(one, again ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            }
            member.commitSync();
            List<ConsumerRecord<byte[], byte[]>> second = pollOnce(member);
            Expect.equal(Set.of("record 1"), new HashSet<>(values(second)), "records that come again");
            Expect.equal((short) 2, second.get(0).deliveryCount().orElseThrow(), "deliveries");
            member.acknowledge(second.get(0), AcknowledgeType.ACCEPT);
            member.commitSync();
            expectNothing(member);
        }
    }

    /** With explicit acknowledgement every record of a poll is acknowledged before the next poll. */
    private static List<ConsumerRecord<byte[], byte[]>> pollOnce(KafkaShareConsumer<byte[], byte[]> member) {
        return poll(1, member);
    }

    /** Polls until so many deliveries came, and acknowledges each as it is told to. */
    static List<ConsumerRecord<byte[], byte[]>> work(
            KafkaShareConsumer<byte[], byte[]> member, int deliveries,
            Function<ConsumerRecord<byte[], byte[]>, AcknowledgeType> decide) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        while (found.size() < deliveries) {
            for (var one : pollOnce(member)) {
                found.add(one);
                member.acknowledge(one, decide.apply(one));
            }
            member.commitSync().forEach((place, problem) ->
                    Expect.equal(Optional.empty(), problem, "acknowledging in " + place));
        }
        return found;
    }

    private static void reject(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        send(cluster, topic, 1, 3);
        try (var member = member(cluster, group, "explicit", topic)) {
            for (var one : pollOnce(member)) {
                member.acknowledge(one, AcknowledgeType.REJECT);
            }
            member.commitSync();
            expectNothing(member);
        }
        try (var another = member(cluster, group, "explicit", topic)) {
            expectNothing(another);
        }
    }

    private static void renew(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        send(cluster, topic, 1, 1);
        try (var member = member(cluster, group, "explicit", topic)) {
            var found = pollOnce(member);
            member.acknowledge(found.get(0), AcknowledgeType.RENEW);
            member.commitSync();
            var again = pollOnce(member); // from the client itself, which holds the record still
            Expect.equal((short) 1, again.get(0).deliveryCount().orElseThrow(), "deliveries");
            member.acknowledge(again.get(0), AcknowledgeType.ACCEPT);
            member.commitSync();
            expectNothing(member);
        }
    }

    private static void leave(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        send(cluster, topic, 1, 10);
        try (var goes = member(cluster, group, "explicit", topic)) {
            pollOnce(goes);
        }
        try (var stays = member(cluster, group, "implicit", topic)) {
            Expect.equal(records(10), values(poll(10, stays)), "records");
        }
    }

    private static void limited(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        send(cluster, topic, 1, 1);
        try (var member = member(cluster, group, "explicit", topic)) {
            for (int delivery = 1; delivery <= DELIVERIES_MAX; delivery++) {
                var found = pollOnce(member);
                Expect.equal((short) delivery, found.get(0).deliveryCount().orElseThrow(), "deliveries");
                member.acknowledge(found.get(0), AcknowledgeType.RELEASE);
                member.commitSync();
            }
            expectNothing(member);
        }
    }

    private static void committed(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster, "share.isolation.level", "read_committed");
        try (var producer = cluster.producer(Map.of("transactional.id", cluster.newName()))) {
            producer.initTransactions();
            for (String value : List.of("aborted", "record 0")) {
                producer.beginTransaction();
                Expect.success(producer.send(new ProducerRecord<>(topic, bytes(value))));
                if (value.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        try (var member = member(cluster, group, "implicit", topic)) {
            Expect.equal(records(1), values(poll(1, member)), "records");
            expectNothing(member);
        }
    }

    private static void latest(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        send(cluster, topic, 1, 5);
        try (var member = member(cluster, cluster.newName(), "implicit", topic)) {
            List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
            Topics.await(() -> {
                // The group begins where the topic ended when it first looked: send until one arrives.
                send(cluster, topic, 1, 1);
                member.poll(Duration.ofMillis(500)).forEach(found::add);
                return !found.isEmpty();
            }, "nothing came");
            Expect.that(found.stream().allMatch(one -> one.offset() >= 5), "an old record came");
        }
    }

    private static void described(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(2);
        String group = newGroup(cluster);
        send(cluster, topic, 2, 2);
        try (var member = member(cluster, group, "implicit", topic)) {
            poll(2, member);
            var found = Expect.success(cluster.admin.describeShareGroups(List.of(group)).all()).get(group);
            Expect.equal(GroupState.STABLE, found.groupState(), "state");
            Expect.equal(1, found.members().size(), "members");
            Expect.equal(
                    new HashSet<>(Cluster.partitions(topic, 2)),
                    found.members().iterator().next().assignment().topicPartitions(), "assignment");
            boolean listed = Expect.success(cluster.admin.listGroups().all()).stream()
                    .anyMatch(one -> one.groupId().equals(group) && one.type().orElseThrow().toString().equals("Share"));
            Expect.that(listed, group + " is not listed");
        }
    }

    private static void offsets(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        TopicPartition place = new TopicPartition(topic, 0);
        send(cluster, topic, 1, 4);
        try (var member = member(cluster, group, "implicit", topic)) {
            poll(4, member);
            member.commitSync();
        }
        Expect.success(cluster.admin.alterShareGroupOffsets(group, Map.of(place, 1L)).all());
        Expect.equal(1L, start(cluster, group, place), "the start offset");
        try (var member = member(cluster, group, "implicit", topic)) {
            Expect.equal(Set.of("record 1", "record 2", "record 3"), new HashSet<>(values(poll(3, member))), "records");
        }
    }

    private static long start(Cluster cluster, String group, TopicPartition place) throws Exception {
        var asked = cluster.admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()));
        return Expect.success(asked.partitionsToOffsetInfo(group)).get(place).startOffset();
    }

    private static void deleted(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(1);
        String group = newGroup(cluster);
        send(cluster, topic, 1, 1);
        try (var member = member(cluster, group, "implicit", topic)) {
            poll(1, member);
        }
        Expect.success(cluster.admin.deleteShareGroups(List.of(group)).all());
        Expect.failure(
                GroupIdNotFoundException.class, cluster.admin.describeShareGroups(List.of(group)).all());
    }
}
