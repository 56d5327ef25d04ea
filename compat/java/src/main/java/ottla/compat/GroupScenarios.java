package ottla.compat;

import static ottla.compat.Cluster.bytes;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;

import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/**
 * Groups: who reads what when members come, go and die; what administrators see and change.
 *
 * Each is played in every way to agree on an assignment. One in which the broker decides (KIP-848) is
 * played as soon as the broker says that it can; until then there is nothing to play.
 */
final class GroupScenarios {
    private static final int PARTITIONS = 6;
    private static final String RANGE = "range";
    private static final String COOPERATIVE = "cooperative";
    private static final String CONSUMER = "consumer";
    private static final short CONSUMER_GROUP_HEARTBEAT = 68;

    private GroupScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        for (String way : List.of(RANGE, COOPERATIVE, CONSUMER)) {
            put(all, "members_come_and_go_", way, GroupScenarios::comeAndGo);
            put(all, "a_member_is_killed_", way, GroupScenarios::killed);
            put(all, "a_static_member_restarts_", way, GroupScenarios::restarts);
            put(all, "topics_by_pattern_", way, GroupScenarios::byPattern);
            put(all, "more_members_than_partitions_", way, GroupScenarios::crowd);
            put(all, "a_group_goes_on_where_it_committed_", way, GroupScenarios::goesOn);
            put(all, "groups_are_listed_and_described_", way, GroupScenarios::described);
            put(all, "offsets_of_groups_are_changed_", way, GroupScenarios::offsetsChanged);
            put(all, "groups_are_deleted_", way, GroupScenarios::deleted);
        }
        all.put("static_members_are_removed", GroupScenarios::removed);
        return all;
    }

    private static void put(Map<String, Scenario> all, String name, String way, Play play) {
        all.put(name + way, cluster -> {
            if (!way.equals(CONSUMER) || canDecide(cluster)) {
                play.play(cluster, way);
            }
        });
    }

    @FunctionalInterface
    private interface Play {
        void play(Cluster cluster, String way) throws Exception;
    }

    /** Whether the broker lists ConsumerGroupHeartbeat; asked with the oldest request there is. */
    private static boolean canDecide(Cluster cluster) throws Exception {
        try (Socket socket = new Socket(cluster.host(), cluster.port())) {
            DataOutputStream out = new DataOutputStream(socket.getOutputStream());
            out.writeInt(10);
            out.writeShort(18); // ApiVersions
            out.writeShort(0);
            out.writeInt(1);
            out.writeShort(-1); // no client id
            out.flush();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            in.skipNBytes(4 + 4 + 2); // size, correlation id, error code
            for (int left = in.readInt(); left > 0; left--) {
                if (in.readShort() == CONSUMER_GROUP_HEARTBEAT) {
                    return true;
                }
                in.readInt(); // lowest and highest version
            }
        }
        return false;
    }

    static Map<String, Object> settings(String group, String way) {
        Map<String, Object> settings = new HashMap<>(Map.of("group.id", group, "metadata.max.age.ms", "500"));
        if (way.equals(CONSUMER)) {
            settings.put("group.protocol", "consumer");
            return settings;
        }
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "300");
        settings.put("partition.assignment.strategy", List.of(way.equals(RANGE)
                ? RangeAssignor.class.getName() : CooperativeStickyAssignor.class.getName()));
        return settings;
    }

    private static Map<String, Object> with(Map<String, Object> settings, String name, Object value) {
        Map<String, Object> more = new HashMap<>(settings);
        more.put(name, value);
        return more;
    }

    // Membership

    private static void comeAndGo(Cluster cluster, String way) throws Exception {
        String topic = cluster.newTopic(PARTITIONS);
        Map<String, Object> settings = settings(topic, way);
        Set<String> sent = new TreeSet<>();
        try (GroupMember first = GroupMember.of(cluster, settings, topic)) {
            awaitShared(topic, PARTITIONS, first);
            send(cluster, topic, sent, 100);
            List<GroupMember> others = new ArrayList<>();
            try {
                others.add(GroupMember.of(cluster, settings, topic));
                others.add(GroupMember.of(cluster, settings, topic));
                awaitShared(topic, PARTITIONS, first, others.get(0), others.get(1));
                send(cluster, topic, sent, 100);
                awaitValues(sent, first, others.get(0), others.get(1));
            } finally {
                for (GroupMember other : others) {
                    other.close();
                }
            }
            awaitShared(topic, PARTITIONS, first);
            send(cluster, topic, sent, 100);
            awaitValues(sent, first, others.get(0), others.get(1));
        }
    }

    private static void killed(Cluster cluster, String way) throws Exception {
        String topic = cluster.newTopic(PARTITIONS);
        Map<String, Object> settings = settings(topic, way);
        Set<String> sent = new TreeSet<>();
        Process doomed = new ProcessBuilder(
                        ProcessHandle.current().info().command().orElseThrow(),
                        "-cp", System.getProperty("java.class.path"), "-Xmx128m",
                        GroupMember.class.getName(), cluster.address(), topic, topic, way)
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        try (GroupMember survivor = GroupMember.of(cluster, settings, topic)) {
            Expect.equal("assigned", doomed.inputReader().readLine(), "what the doomed member says");
            await(() -> survivor.owned().size() == PARTITIONS / 2, Expect.PATIENCE_S, "partitions are not shared");
            doomed.destroyForcibly().waitFor();
            send(cluster, topic, sent, 100);
            await(() -> survivor.owned().size() == PARTITIONS, 60, "a killed member keeps its partitions");
            awaitValues(sent, survivor);
        } finally {
            doomed.destroyForcibly();
        }
    }

    private static void restarts(Cluster cluster, String way) throws Exception {
        String topic = cluster.newTopic(PARTITIONS);
        Map<String, Object> settings = settings(topic, way);
        Map<String, Object> staticSettings = with(settings, "group.instance.id", "static-one");
        try (GroupMember other = GroupMember.of(cluster, settings, topic)) {
            Set<TopicPartition> before;
            try (GroupMember member = GroupMember.of(cluster, staticSettings, topic)) {
                awaitShared(topic, PARTITIONS, member, other);
                before = member.owned();
            }
            int changes = other.changes();
            try (GroupMember member = GroupMember.of(cluster, staticSettings, topic)) {
                awaitShared(topic, PARTITIONS, member, other);
                Expect.equal(before, member.owned(), "what a static member owns after a restart");
                Expect.equal(changes, other.changes(), "changes that the other member has seen");
            }
        }
    }

    private static void byPattern(Cluster cluster, String way) throws Exception {
        String prefix = cluster.newName();
        Topics.create(cluster.admin, prefix + "-a", 2);
        KafkaConsumer<byte[], byte[]> consumer = cluster.consumer(settings(prefix, way));
        try (GroupMember member = new GroupMember(consumer, it -> {
            if (way.equals(CONSUMER)) {
                consumer.subscribe(new SubscriptionPattern(prefix + "-.*"), it);
            } else {
                consumer.subscribe(Pattern.compile(Pattern.quote(prefix) + "-.*"), it);
            }
        })) {
            await(() -> member.owned().size() == 2, Expect.PATIENCE_S, "a topic that is there is not found");
            Topics.create(cluster.admin, prefix + "-b", 3);
            await(() -> member.owned().size() == 5, Expect.PATIENCE_S, "a new topic is not found");
        }
    }

    private static void crowd(Cluster cluster, String way) throws Exception {
        String topic = cluster.newTopic(2);
        Map<String, Object> settings = settings(topic, way);
        Set<String> sent = new TreeSet<>();
        try (GroupMember first = GroupMember.of(cluster, settings, topic);
                GroupMember second = GroupMember.of(cluster, settings, topic);
                GroupMember third = GroupMember.of(cluster, settings, topic)) {
            awaitShared(topic, 2, first, second, third);
            await(() -> members(cluster, topic) == 3, Expect.PATIENCE_S, "three members are not there");
            awaitShared(topic, 2, first, second, third);
            send(cluster, topic, sent, 100);
            awaitValues(sent, first, second, third);
            List<GroupMember> busy = new ArrayList<>(List.of(first, second, third));
            busy.removeIf(member -> member.owned().isEmpty());
            Expect.equal(2, busy.size(), "members that own something");
            busy.get(0).close();
            send(cluster, topic, sent, 100);
            awaitValues(sent, first, second, third);
        }
    }

    // Offsets

    private static void goesOn(Cluster cluster, String way) throws Exception {
        TopicPartition partition = new TopicPartition(cluster.newTopic(1), 0);
        Map<String, Object> settings = settings(partition.topic(), way);
        send(cluster, partition.topic(), new HashSet<>(), 10);
        try (var consumer = cluster.consumer(with(settings, "max.poll.records", "4"))) {
            consumer.subscribe(List.of(partition.topic()));
            Cluster.poll(consumer, 4);
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(4, "so far")));
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            Expect.equal(4L, committed.offset(), "committed offset");
            Expect.equal("so far", committed.metadata(), "metadata of the commit");
        }
        try (var consumer = cluster.consumer(settings)) {
            consumer.subscribe(List.of(partition.topic()));
            Expect.equal(4L, Cluster.poll(consumer, 6).get(0).offset(), "where the next member begins");
        }
    }

    private static void offsetsChanged(Cluster cluster, String way) throws Exception {
        String topic = cluster.newTopic(2);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        var wanted = Map.of(first, new OffsetAndMetadata(7), second, new OffsetAndMetadata(8));
        Expect.success(cluster.admin.alterConsumerGroupOffsets(topic, wanted).all());
        Expect.equal(wanted.keySet(), offsets(cluster, topic).keySet(), "partitions with offsets");
        Expect.equal(7L, offsets(cluster, topic).get(first).offset(), "offset that was set");
        Expect.success(cluster.admin.deleteConsumerGroupOffsets(topic, Set.of(first)).all());
        Expect.equal(Set.of(second), offsets(cluster, topic).keySet(), "partitions with offsets left");
        try (GroupMember member = GroupMember.of(cluster, settings(topic, way), topic)) {
            awaitShared(topic, 2, member);
            Expect.failure(UnknownMemberIdException.class,
                    cluster.admin.alterConsumerGroupOffsets(topic, wanted).all());
            Expect.failure(GroupSubscribedToTopicException.class,
                    cluster.admin.deleteConsumerGroupOffsets(topic, Set.of(second)).partitionResult(second));
        }
        Expect.failure(GroupIdNotFoundException.class,
                cluster.admin.deleteConsumerGroupOffsets(cluster.newName(), Set.of(first)).all());
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(Cluster cluster, String group) throws Exception {
        return Expect.success(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    }

    // Administration

    private static void described(Cluster cluster, String way) throws Exception {
        String topic = cluster.newTopic(2);
        try (GroupMember member = GroupMember.of(cluster, settings(topic, way), topic)) {
            awaitShared(topic, 2, member);
            await(() -> describe(cluster, topic).groupState() == GroupState.STABLE, Expect.PATIENCE_S, "not stable");
            ConsumerGroupDescription found = describe(cluster, topic);
            Expect.equal(1, found.members().size(), "members");
            Expect.equal(Set.copyOf(Cluster.partitions(topic, 2)),
                    found.members().iterator().next().assignment().topicPartitions(), "its assignment");
            Expect.equal(switch (way) {
                case RANGE -> "range";
                case COOPERATIVE -> "cooperative-sticky";
                default -> "uniform";
            }, found.partitionAssignor(), "assignor");
            Expect.equal(0, found.coordinator().id() - onlyBroker(cluster), "coordinator");
            GroupListing listed = listed(cluster, topic);
            Expect.equal("consumer", listed.protocol(), "protocol");
            Expect.equal(way.equals(CONSUMER) ? "Consumer" : "Classic", listed.type().orElseThrow().toString(), "type");
            Expect.equal(GroupState.STABLE, listed.groupState().orElseThrow(), "state in the list");
        }
        await(() -> describe(cluster, topic).groupState() == GroupState.EMPTY, Expect.PATIENCE_S, "it is not empty");
        Expect.failure(GroupIdNotFoundException.class,
                cluster.admin.describeConsumerGroups(List.of(cluster.newName())).all());
    }

    private static int onlyBroker(Cluster cluster) throws Exception {
        return Expect.success(cluster.admin.describeCluster().nodes()).iterator().next().id();
    }

    private static ConsumerGroupDescription describe(Cluster cluster, String group) throws Exception {
        return Expect.success(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    private static int members(Cluster cluster, String group) throws Exception {
        ConsumerGroupDescription found = describe(cluster, group);
        return found.groupState() == GroupState.STABLE ? found.members().size() : 0;
    }

    private static GroupListing listed(Cluster cluster, String group) throws Exception {
        return Expect.success(cluster.admin.listGroups(ListGroupsOptions.forConsumerGroups()).all()).stream()
                .filter(listing -> listing.groupId().equals(group))
                .findFirst()
                .orElseThrow();
    }

    private static void deleted(Cluster cluster, String way) throws Exception {
        String topic = cluster.newTopic(1);
        send(cluster, topic, new HashSet<>(), 1);
        try (GroupMember member = GroupMember.of(cluster, settings(topic, way), topic)) {
            awaitShared(topic, 1, member);
            await(() -> !offsets(cluster, topic).isEmpty(), Expect.PATIENCE_S, "nothing is committed");
            Expect.failure(GroupNotEmptyException.class, cluster.admin.deleteConsumerGroups(List.of(topic)).all());
        }
        await(() -> describe(cluster, topic).groupState() == GroupState.EMPTY, Expect.PATIENCE_S, "it is not empty");
        Expect.success(cluster.admin.deleteConsumerGroups(List.of(topic)).all());
        Expect.equal(Map.of(), offsets(cluster, topic), "offsets of a deleted group");
        Expect.failure(GroupIdNotFoundException.class, cluster.admin.deleteConsumerGroups(List.of(topic)).all());
    }

    private static void removed(Cluster cluster) throws Exception {
        String topic = cluster.newTopic(2);
        Map<String, Object> settings = with(settings(topic, RANGE), "group.instance.id", "static-one");
        GroupMember.of(cluster, settings, topic).close();
        try (GroupMember member = GroupMember.of(cluster, settings, topic)) {
            awaitShared(topic, 2, member);
        }
        Expect.equal(1, describe(cluster, topic).members().size(), "static members that are away");
        var wanted = new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("static-one")));
        Expect.success(cluster.admin.removeMembersFromConsumerGroup(topic, wanted).all());
        await(() -> describe(cluster, topic).groupState() == GroupState.EMPTY, Expect.PATIENCE_S, "it is not empty");
    }

    // Waiting

    private static void send(Cluster cluster, String topic, Set<String> sent, int count) throws Exception {
        try (var producer = cluster.producer(Map.of("partitioner.ignore.keys", "true", "batch.size", "0"))) {
            for (int number = 0; number < count; number++) {
                String value = topic + " " + sent.size();
                sent.add(value);
                producer.send(new ProducerRecord<>(topic, bytes(value)));
            }
        }
    }

    private static void awaitShared(String topic, int partitions, GroupMember... members) throws Exception {
        Set<TopicPartition> all = Set.copyOf(Cluster.partitions(topic, partitions));
        await(() -> {
            List<TopicPartition> owned = new ArrayList<>();
            int busy = 0;
            for (GroupMember member : members) {
                owned.addAll(member.owned());
                busy += member.owned().isEmpty() ? 0 : 1;
            }
            return owned.size() == partitions && Set.copyOf(owned).equals(all)
                    && busy == Math.min(members.length, partitions);
        }, Expect.PATIENCE_S, "partitions are not shared");
    }

    private static void awaitValues(Set<String> sent, GroupMember... members) throws Exception {
        await(() -> {
            Set<String> found = new HashSet<>();
            for (GroupMember member : members) {
                found.addAll(member.values());
            }
            return found.equals(sent);
        }, Expect.PATIENCE_S, "records are missing");
    }

    private static void await(Topics.Condition condition, int seconds, String problem) throws Exception {
        long deadline = System.nanoTime() + Duration.ofSeconds(seconds).toNanos();
        while (!condition.holds()) {
            Expect.that(System.nanoTime() < deadline, problem);
            Thread.sleep(20);
        }
    }
}
