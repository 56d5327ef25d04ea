package ottla.compat;

import static ottla.compat.Cluster.bytes;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;

/** The cluster and its brokers, through Admin. */
final class ClusterScenarios {
    private ClusterScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("describe_cluster", ClusterScenarios::describeCluster);
        all.put("describe_log_dirs", ClusterScenarios::logDirs);
        all.put("describe_producers", ClusterScenarios::producers);
        all.put("describe_metadata_quorum", ClusterScenarios::quorum);
        all.put("describe_features", ClusterScenarios::features);
        return all;
    }

    private static void describeCluster(Cluster cluster) throws Exception {
        var described = cluster.admin.describeCluster();
        var nodes = Expect.success(described.nodes());
        Expect.equal(1, nodes.size(), "brokers");
        Node broker = nodes.iterator().next();
        Expect.equal("127.0.0.1", broker.host(), "host");
        Expect.equal(broker, Expect.success(described.controller()), "controller");
        Expect.that(!Expect.success(described.clusterId()).isEmpty(), "cluster id");
    }

    private static void logDirs(Cluster cluster) throws Exception {
        String name = cluster.newTopic(2);
        TopicPartition partition = new TopicPartition(name, 0);
        try (var producer = cluster.producer(Map.of())) {
            Expect.success(producer.send(new ProducerRecord<>(name, 0, null, new byte[10_000])));
        }
        int broker = Expect.success(cluster.admin.describeCluster().nodes()).iterator().next().id();
        var found = Expect.success(cluster.admin.describeLogDirs(List.of(broker)).allDescriptions()).get(broker);
        Expect.equal(1, found.size(), "directories");
        var directory = found.values().iterator().next();
        Expect.equal(null, directory.error(), "error");
        Expect.that(directory.totalBytes().getAsLong() > directory.usableBytes().getAsLong(), "room on the disk");
        var replica = directory.replicaInfos().get(partition);
        Expect.that(replica.size() > 10_000 && replica.size() < 11_000, "size " + replica.size());
        Expect.that(!replica.isFuture() && replica.offsetLag() == 0, "it is where it should be");
        Expect.equal(0L, directory.replicaInfos().get(new TopicPartition(name, 1)).size(), "size of nothing");
        TopicPartitionReplica copy = new TopicPartitionReplica(name, 0, broker);
        var where = Expect.success(cluster.admin.describeReplicaLogDirs(List.of(copy)).all()).get(copy);
        Expect.equal(found.keySet().iterator().next(), where.getCurrentReplicaLogDir(), "directory of a replica");
    }

    private static void producers(Cluster cluster) throws Exception {
        TopicPartition partition = new TopicPartition(cluster.newTopic(1), 0);
        try (var producer = cluster.producer(Map.of())) {
            for (int number = 0; number < 3; number++) {
                Expect.success(producer.send(new ProducerRecord<>(partition.topic(), bytes("letter"))));
            }
            var found = Expect.success(
                    cluster.admin.describeProducers(List.of(partition)).partitionResult(partition));
            Expect.equal(1, found.activeProducers().size(), "producers");
            ProducerState one = found.activeProducers().get(0);
            Expect.that(one.producerId() >= 0, "producer id");
            Expect.equal(0, one.producerEpoch(), "epoch");
            Expect.equal(2, one.lastSequence(), "last sequence");
            Expect.that(one.lastTimestamp() > 0, "time");
            Expect.that(one.currentTransactionStartOffset().isEmpty(), "no transaction");
        }
    }

    private static void quorum(Cluster cluster) throws Exception {
        var quorum = Expect.success(cluster.admin.describeMetadataQuorum().quorumInfo());
        Expect.equal(1, quorum.voters().size(), "voters");
        Expect.equal(quorum.leaderId(), quorum.voters().get(0).replicaId(), "leader");
        Expect.that(quorum.highWatermark() > 0, "high watermark");
        Expect.that(quorum.nodes().containsKey(quorum.leaderId()), "the leader is among the nodes");
    }

    private static void features(Cluster cluster) throws Exception {
        var features = Expect.success(cluster.admin.describeFeatures().featureMetadata());
        Expect.that(features.supportedFeatures() != null && features.finalizedFeatures() != null, "features");
    }
}
