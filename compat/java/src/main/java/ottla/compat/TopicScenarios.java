package ottla.compat;

import static ottla.compat.Cluster.bytes;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Topics, their partitions and their offsets, through Admin. */
final class TopicScenarios {
    private TopicScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("create_and_describe_topics", TopicScenarios::createAndDescribe);
        all.put("create_with_an_assignment", TopicScenarios::createAssigned);
        all.put("validate_only_creates_nothing", TopicScenarios::validateOnly);
        all.put("topics_that_cannot_be_created", TopicScenarios::refusedTopics);
        all.put("list_topics", TopicScenarios::list);
        all.put("describe_topics_page_by_page", TopicScenarios::describePages);
        all.put("delete_by_name", TopicScenarios::deleteByName);
        all.put("delete_by_id", TopicScenarios::deleteById);
        all.put("topics_that_are_not_there", TopicScenarios::unknownTopics);
        all.put("create_partitions", TopicScenarios::createPartitions);
        all.put("partitions_that_cannot_be_created", TopicScenarios::refusedPartitions);
        all.put("delete_records", TopicScenarios::deleteRecords);
        all.put("list_offsets_with_every_spec", TopicScenarios::listOffsets);
        all.put("list_offsets_of_an_empty_partition", TopicScenarios::listOffsetsOfNothing);
        return all;
    }

    private static void createAndDescribe(Cluster cluster) throws Exception {
        String name = cluster.newName();
        NewTopic topic = new NewTopic(name, 3, (short) 1).configs(Map.of("retention.ms", "60000"));
        var created = cluster.admin.createTopics(List.of(topic));
        Expect.success(created.all());
        Expect.equal(3, Expect.success(created.numPartitions(name)), "partitions");
        Expect.equal(1, Expect.success(created.replicationFactor(name)), "replicas");
        Expect.equal("60000", Expect.success(created.config(name)).get("retention.ms").value(), "setting");
        Uuid id = Expect.success(created.topicId(name));
        TopicDescription byName = Topics.describe(cluster.admin, name);
        Expect.equal(id, byName.topicId(), "topic id");
        Expect.equal(3, byName.partitions().size(), "partitions");
        Expect.that(!byName.isInternal(), "not internal");
        byName.partitions().forEach(partition -> {
            Expect.equal(1, partition.replicas().size(), "replicas");
            Expect.equal(partition.replicas(), partition.isr(), "in-sync replicas");
            Expect.equal(partition.replicas().get(0), partition.leader(), "leader");
        });
        var byId = cluster.admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds();
        Expect.equal(byName.name(), Expect.success(byId).get(id).name(), "name by id");
        Expect.equal(3, Expect.success(byId).get(id).partitions().size(), "partitions by id");
    }

    private static void createAssigned(Cluster cluster) throws Exception {
        int broker = cluster.admin.describeCluster().nodes().get().iterator().next().id();
        String name = cluster.newName();
        NewTopic topic = new NewTopic(name, Map.of(0, List.of(broker), 1, List.of(broker)));
        Expect.success(cluster.admin.createTopics(List.of(topic)).all());
        Expect.equal(2, Topics.describe(cluster.admin, name).partitions().size(), "partitions");
    }

    private static void validateOnly(Cluster cluster) throws Exception {
        String name = cluster.newName();
        var created = cluster.admin.createTopics(
                List.of(new NewTopic(name, 7, (short) 1)), new CreateTopicsOptions().validateOnly(true));
        Expect.success(created.all());
        Expect.equal(7, Expect.success(created.numPartitions(name)), "partitions it would have");
        Expect.that(!Expect.success(cluster.admin.listTopics().names()).contains(name), "it is not there");
    }

    private static void refusedTopics(Cluster cluster) throws Exception {
        String taken = cluster.newTopic(1);
        Expect.failure(TopicExistsException.class, create(cluster, new NewTopic(taken, 1, (short) 1)));
        for (String name : List.of("a b", "", ".", "..", "a/b", "ä", "x".repeat(250))) {
            Expect.failure(InvalidTopicException.class, create(cluster, new NewTopic(name, 1, (short) 1)));
        }
        String dotted = cluster.newName() + ".a";
        Topics.create(cluster.admin, dotted, 1);
        Expect.failure(InvalidTopicException.class,
                create(cluster, new NewTopic(dotted.replace('.', '_'), 1, (short) 1)));
        String name = cluster.newName();
        Expect.failure(InvalidPartitionsException.class, create(cluster, new NewTopic(name, 0, (short) 1)));
        Expect.failure(InvalidReplicationFactorException.class, create(cluster, new NewTopic(name, 1, (short) 3)));
        Expect.failure(InvalidReplicationFactorException.class, create(cluster, new NewTopic(name, 1, (short) 0)));
        for (var setting : List.of(Map.of("no.such.setting", "1"), Map.of("retention.ms", "soon"),
                Map.of("cleanup.policy", "burn"), Map.of("min.insync.replicas", "0"))) {
            Expect.failure(InvalidConfigurationException.class,
                    create(cluster, new NewTopic(name, 1, (short) 1).configs(setting)));
        }
        Expect.failure(InvalidReplicaAssignmentException.class,
                create(cluster, new NewTopic(name, Map.of(0, List.of(77)))));
        Expect.failure(InvalidReplicaAssignmentException.class,
                create(cluster, new NewTopic(name, Map.of(1, List.of(broker(cluster))))));
        Expect.failure(InvalidReplicaAssignmentException.class,
                create(cluster, new NewTopic(name, Map.of(0, List.of(broker(cluster), broker(cluster))))));
        Expect.that(!Expect.success(cluster.admin.listTopics().names()).contains(name), "nothing was made");
    }

    private static int broker(Cluster cluster) throws Exception {
        return Expect.success(cluster.admin.describeCluster().nodes()).iterator().next().id();
    }

    private static Future<Void> create(Cluster cluster, NewTopic topic) {
        return cluster.admin.createTopics(List.of(topic)).all();
    }

    private static void list(Cluster cluster) throws Exception {
        String name = cluster.newName();
        Uuid id = Topics.create(cluster.admin, name, 1);
        var listings = Expect.success(cluster.admin.listTopics().namesToListings());
        Expect.equal(id, listings.get(name).topicId(), "topic id");
        var all = Expect.success(cluster.admin.listTopics(new ListTopicsOptions().listInternal(true)).names());
        Expect.that(all.contains(name), "it is in the list with internal ones");
    }

    private static void describePages(Cluster cluster) throws Exception {
        String large = cluster.newTopic(25);
        String small = cluster.newTopic(2);
        Topics.describe(cluster.admin, large);
        Topics.describe(cluster.admin, small);
        var options = new DescribeTopicsOptions().partitionSizeLimitPerResponse(10);
        var found = Expect.success(cluster.admin.describeTopics(List.of(large, small), options).allTopicNames());
        Expect.equal(25, found.get(large).partitions().size(), "partitions of the large one");
        Expect.equal(2, found.get(small).partitions().size(), "partitions of the small one");
        for (int index = 0; index < 25; index++) {
            Expect.equal(index, found.get(large).partitions().get(index).partition(), "partition");
        }
    }

    private static void deleteByName(Cluster cluster) throws Exception {
        String name = cluster.newTopic(2);
        Expect.success(cluster.admin.deleteTopics(List.of(name)).all());
        Topics.awaitGone(cluster.admin, name);
        Expect.failure(UnknownTopicOrPartitionException.class, cluster.admin.deleteTopics(List.of(name)).all());
        Uuid again = Topics.create(cluster.admin, name, 1);
        Expect.equal(again, Topics.describe(cluster.admin, name).topicId(), "a new id");
        cluster.readAll(name, 1, 0);
    }

    private static void deleteById(Cluster cluster) throws Exception {
        String name = cluster.newName();
        Uuid id = Topics.create(cluster.admin, name, 1);
        Expect.success(cluster.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        Topics.awaitGone(cluster.admin, name);
        Expect.failure(UnknownTopicIdException.class,
                cluster.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        Expect.failure(UnknownTopicIdException.class,
                cluster.admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds());
    }

    private static void unknownTopics(Cluster cluster) throws Exception {
        String name = cluster.newName();
        Expect.failure(UnknownTopicOrPartitionException.class,
                cluster.admin.describeTopics(List.of(name)).allTopicNames());
        Expect.failure(InvalidTopicException.class, cluster.admin.describeTopics(List.of("a b")).allTopicNames());
        Expect.failure(UnknownTopicOrPartitionException.class, cluster.admin.deleteTopics(List.of(name)).all());
        var hurry = Map.<String, Object>of("default.api.timeout.ms", "1500", "request.timeout.ms", "1000");
        try (Admin hasty = cluster.admin(hurry)) {
            TopicPartition partition = new TopicPartition(name, 0);
            Expect.failure(UnknownTopicOrPartitionException.class,
                    hasty.listOffsets(Map.of(partition, OffsetSpec.latest())).all());
            Expect.failure(TimeoutException.class, // it asks for the leader until its patience ends
                    hasty.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(0))).all());
        }
    }

    private static void createPartitions(Cluster cluster) throws Exception {
        String name = cluster.newTopic(1);
        var wish = Map.of(name, NewPartitions.increaseTo(3));
        Expect.success(cluster.admin.createPartitions(wish, new CreatePartitionsOptions().validateOnly(true)).all());
        Expect.equal(1, Topics.describe(cluster.admin, name).partitions().size(), "only validated");
        Expect.success(cluster.admin.createPartitions(wish).all());
        Topics.awaitPartitions(cluster.admin, name, 3);
        int broker = broker(cluster);
        Expect.success(cluster.admin.createPartitions(
                Map.of(name, NewPartitions.increaseTo(5, List.of(List.of(broker), List.of(broker))))).all());
        Topics.awaitPartitions(cluster.admin, name, 5);
        try (var producer = cluster.producer(Map.of())) {
            for (int index = 0; index < 5; index++) {
                Expect.success(producer.send(new ProducerRecord<>(name, index, null, bytes("to all"))));
            }
        }
        cluster.readAll(name, 5, 5);
    }

    private static void refusedPartitions(Cluster cluster) throws Exception {
        String name = cluster.newTopic(3);
        for (int count : new int[] {3, 2, 0, -1}) {
            Expect.failure(InvalidPartitionsException.class, grow(cluster, name, NewPartitions.increaseTo(count)));
        }
        Expect.failure(UnknownTopicOrPartitionException.class,
                grow(cluster, cluster.newName(), NewPartitions.increaseTo(4)));
        for (List<List<Integer>> assignment : List.of(
                List.of(List.of(77)), List.of(List.of(0), List.of(0)), List.of(List.<Integer>of()))) {
            Expect.failure(InvalidReplicaAssignmentException.class,
                    grow(cluster, name, NewPartitions.increaseTo(4, assignment)));
        }
        Expect.equal(3, Topics.describe(cluster.admin, name).partitions().size(), "partitions");
    }

    private static Future<Void> grow(Cluster cluster, String name, NewPartitions partitions) {
        return cluster.admin.createPartitions(Map.of(name, partitions)).all();
    }

    private static void deleteRecords(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        Expect.equal(4L, deleteBefore(cluster, partition, 4), "low watermark");
        Expect.equal(4L, deleteBefore(cluster, partition, 2), "it does not go back");
        Expect.equal(4L, cluster.readAll(partition.topic(), 1, 6).get(0).offset(), "first offset");
        Expect.failure(OffsetOutOfRangeException.class, cluster.admin.deleteRecords(
                Map.of(partition, RecordsToDelete.beforeOffset(11))).all());
        Expect.equal(10L, deleteBefore(cluster, partition, -1), "low watermark");
        cluster.readAll(partition.topic(), 1, 0);
        Expect.equal(10L, offset(cluster, partition, OffsetSpec.earliest()), "earliest");
    }

    private static long deleteBefore(Cluster cluster, TopicPartition partition, long offset) throws Exception {
        var deleted = cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset)));
        return Expect.success(deleted.lowWatermarks().get(partition)).lowWatermark();
    }

    /** A partition with ten records, of which the fourth has the largest timestamp. */
    private static TopicPartition tenRecords(Cluster cluster) throws Exception {
        TopicPartition partition = new TopicPartition(cluster.newTopic(1), 0);
        try (var producer = cluster.producer(Map.of("linger.ms", "50"))) {
            for (int number = 0; number < 10; number++) {
                long timestamp = number == 3 ? 90_000 : 1000L * number;
                producer.send(new ProducerRecord<>(partition.topic(), 0, timestamp, null, bytes("" + number)));
            }
        }
        return partition;
    }

    private static void listOffsets(Cluster cluster) throws Exception {
        TopicPartition partition = tenRecords(cluster);
        deleteBefore(cluster, partition, 1);
        Expect.equal(1L, offset(cluster, partition, OffsetSpec.earliest()), "earliest");
        Expect.equal(10L, offset(cluster, partition, OffsetSpec.latest()), "latest");
        Expect.equal(1L, offset(cluster, partition, OffsetSpec.earliestLocal()), "earliest local");
        Expect.equal(-1L, offset(cluster, partition, OffsetSpec.latestTiered()), "latest tiered");
        Expect.equal(-1L, offset(cluster, partition, OffsetSpec.earliestPendingUpload()), "earliest pending upload");
        Expect.equal(2L, offset(cluster, partition, OffsetSpec.forTimestamp(1500)), "at 1.5 s");
        Expect.equal(3L, offset(cluster, partition, OffsetSpec.forTimestamp(9001)), "at 9 s and a bit");
        Expect.equal(-1L, offset(cluster, partition, OffsetSpec.forTimestamp(90_001)), "after all of them");
        ListOffsetsResultInfo newest = find(cluster, partition, OffsetSpec.maxTimestamp());
        Expect.equal(3L, newest.offset(), "offset of the largest timestamp");
        Expect.equal(90_000L, newest.timestamp(), "the largest timestamp");
        ListOffsetsResultInfo latest = find(cluster, partition, OffsetSpec.latest());
        Expect.equal(Optional.of(0), latest.leaderEpoch(), "leader epoch");
    }

    private static void listOffsetsOfNothing(Cluster cluster) throws Exception {
        TopicPartition partition = new TopicPartition(cluster.newTopic(1), 0);
        Expect.equal(0L, offset(cluster, partition, OffsetSpec.earliest()), "earliest");
        Expect.equal(0L, offset(cluster, partition, OffsetSpec.latest()), "latest");
        Expect.equal(-1L, offset(cluster, partition, OffsetSpec.maxTimestamp()), "largest timestamp");
        Expect.equal(-1L, offset(cluster, partition, OffsetSpec.forTimestamp(0)), "at 0");
    }

    private static long offset(Cluster cluster, TopicPartition partition, OffsetSpec spec) throws Exception {
        return find(cluster, partition, spec).offset();
    }

    private static ListOffsetsResultInfo find(Cluster cluster, TopicPartition partition, OffsetSpec spec)
            throws Exception {
        return Expect.success(cluster.admin.listOffsets(Map.of(partition, spec)).partitionResult(partition));
    }
}
