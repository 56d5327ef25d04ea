package ottla.compat;

import static ottla.compat.Cluster.bytes;

import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;

import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigSource;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigType;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Settings of topics and brokers, through Admin. */
final class ConfigScenarios {
    private static final ConfigResource ALL_BROKERS = new ConfigResource(ConfigResource.Type.BROKER, "");

    private ConfigScenarios() {}

    static Map<String, Scenario> all() {
        Map<String, Scenario> all = new LinkedHashMap<>();
        all.put("describe_a_topics_settings", ConfigScenarios::describeTopic);
        all.put("describe_a_brokers_settings", ConfigScenarios::describeBroker);
        all.put("set_and_delete_a_setting", ConfigScenarios::setAndDelete);
        all.put("a_changed_setting_is_obeyed", ConfigScenarios::obeyed);
        all.put("validate_only_changes_no_setting", ConfigScenarios::validateOnly);
        all.put("settings_of_all_brokers_are_defaults_of_topics", ConfigScenarios::brokerDefaults);
        all.put("settings_that_are_refused", ConfigScenarios::refused);
        all.put("list_config_resources", ConfigScenarios::resources);
        return all;
    }

    private static ConfigResource topic(String name) {
        return new ConfigResource(ConfigResource.Type.TOPIC, name);
    }

    private static ConfigEntry read(Cluster cluster, ConfigResource resource, String name) throws Exception {
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return Expect.success(cluster.admin.describeConfigs(List.of(resource), options).all()).get(resource).get(name);
    }

    private static Future<Void> alter(Cluster cluster, ConfigResource resource, OpType kind, String name, String value) {
        return alter(cluster, resource, kind, name, value, new AlterConfigsOptions());
    }

    private static Future<Void> alter(Cluster cluster, ConfigResource resource, OpType kind, String name, String value,
            AlterConfigsOptions options) {
        Collection<AlterConfigOp> edits = List.of(new AlterConfigOp(new ConfigEntry(name, value), kind));
        return cluster.admin.incrementalAlterConfigs(Map.of(resource, edits), options).all();
    }

    private static void describeTopic(Cluster cluster) throws Exception {
        ConfigResource resource = topic(cluster.newTopic(1, Map.of("retention.ms", "60000")));
        ConfigEntry set = read(cluster, resource, "retention.ms");
        Expect.equal("60000", set.value(), "value");
        Expect.equal(ConfigSource.DYNAMIC_TOPIC_CONFIG, set.source(), "source");
        Expect.equal(ConfigType.LONG, set.type(), "type");
        Expect.that(!set.isDefault() && !set.isReadOnly() && !set.isSensitive(), "flags");
        Expect.equal(ConfigSource.DYNAMIC_TOPIC_CONFIG, set.synonyms().get(0).source(), "the strongest synonym");
        Expect.that(!set.documentation().isEmpty(), "documentation");
        ConfigEntry unset = read(cluster, resource, "max.message.bytes");
        Expect.equal(ConfigSource.DEFAULT_CONFIG, unset.source(), "source of a default");
        Expect.equal("1048588", unset.value(), "the default");
        Expect.equal(ConfigType.INT, unset.type(), "type");
        Expect.that(unset.isDefault(), "it is a default");
        Expect.equal(ConfigType.LIST, read(cluster, resource, "cleanup.policy").type(), "type of a list");
        Expect.equal(ConfigType.BOOLEAN,
                read(cluster, resource, "unclean.leader.election.enable").type(), "type of a flag");
        Expect.equal(ConfigType.STRING, read(cluster, resource, "compression.type").type(), "type of a word");
    }

    private static void describeBroker(Cluster cluster) throws Exception {
        String id = Expect.success(cluster.admin.describeCluster().nodes()).iterator().next().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
        Expect.equal("1", read(cluster, broker, "num.partitions").value(), "num.partitions");
        Expect.equal("1048588", read(cluster, broker, "message.max.bytes").value(), "message.max.bytes");
    }

    private static void setAndDelete(Cluster cluster) throws Exception {
        ConfigResource resource = topic(cluster.newTopic(1));
        Expect.success(alter(cluster, resource, OpType.SET, "segment.bytes", "2000000"));
        awaitValue(cluster, resource, "segment.bytes", "2000000");
        Expect.success(alter(cluster, resource, OpType.SET, "retention.ms", "1000000"));
        awaitValue(cluster, resource, "retention.ms", "1000000");
        awaitValue(cluster, resource, "segment.bytes", "2000000");
        Expect.success(alter(cluster, resource, OpType.DELETE, "segment.bytes", null));
        awaitValue(cluster, resource, "segment.bytes", "1073741824");
        Expect.equal(ConfigSource.DEFAULT_CONFIG, read(cluster, resource, "segment.bytes").source(), "source");
        awaitValue(cluster, resource, "retention.ms", "1000000");
    }

    private static void awaitValue(Cluster cluster, ConfigResource resource, String name, String value)
            throws Exception {
        Topics.await(() -> read(cluster, resource, name).value().equals(value), name + " has not become " + value);
    }

    private static void obeyed(Cluster cluster) throws Exception {
        String name = cluster.newTopic(1);
        try (var producer = cluster.producer(Map.of())) {
            Expect.success(producer.send(new ProducerRecord<>(name, new byte[50_000])));
            Expect.success(alter(cluster, topic(name), OpType.SET, "max.message.bytes", "10000"));
            awaitValue(cluster, topic(name), "max.message.bytes", "10000");
            Expect.failure(RecordTooLargeException.class, producer.send(new ProducerRecord<>(name, new byte[50_000])));
            Expect.success(producer.send(new ProducerRecord<>(name, bytes("small"))));
        }
        cluster.readAll(name, 1, 2);
    }

    private static void validateOnly(Cluster cluster) throws Exception {
        ConfigResource resource = topic(cluster.newTopic(1));
        var only = new AlterConfigsOptions().validateOnly(true);
        Expect.success(alter(cluster, resource, OpType.SET, "retention.ms", "1234", only));
        Expect.failure(InvalidConfigurationException.class,
                alter(cluster, resource, OpType.SET, "retention.ms", "soon", only));
        Expect.equal(ConfigSource.DEFAULT_CONFIG, read(cluster, resource, "retention.ms").source(), "source");
    }

    private static void brokerDefaults(Cluster cluster) throws Exception {
        ConfigResource resource = topic(cluster.newTopic(1));
        try {
            Expect.success(alter(cluster, ALL_BROKERS, OpType.SET, "message.max.bytes", "2000000"));
            awaitValue(cluster, resource, "max.message.bytes", "2000000");
            ConfigEntry inherited = read(cluster, resource, "max.message.bytes");
            Expect.equal(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, inherited.source(), "source");
            Expect.equal("message.max.bytes", inherited.synonyms().get(0).name(), "synonym");
            Expect.equal("2000000", read(cluster, ALL_BROKERS, "message.max.bytes").value(), "of all brokers");
        } finally {
            Expect.success(alter(cluster, ALL_BROKERS, OpType.DELETE, "message.max.bytes", null));
        }
        awaitValue(cluster, resource, "max.message.bytes", "1048588");
    }

    private static void refused(Cluster cluster) throws Exception {
        ConfigResource resource = topic(cluster.newTopic(1));
        Class<InvalidConfigurationException> invalid = InvalidConfigurationException.class;
        Expect.failure(invalid, alter(cluster, resource, OpType.SET, "no.such.setting", "1"));
        Expect.failure(invalid, alter(cluster, resource, OpType.SET, "retention.ms", "soon"));
        Expect.failure(invalid, alter(cluster, resource, OpType.SET, "min.insync.replicas", "0"));
        Expect.failure(invalid, alter(cluster, resource, OpType.APPEND, "retention.ms", "1"));
        Expect.failure(invalid, alter(cluster, resource, OpType.SUBTRACT, "compression.type", "gzip"));
        Class<UnknownTopicOrPartitionException> unknown = UnknownTopicOrPartitionException.class;
        ConfigResource nowhere = topic(cluster.newName());
        Expect.failure(unknown, alter(cluster, nowhere, OpType.SET, "retention.ms", "1000"));
        Expect.failure(unknown, cluster.admin.describeConfigs(List.of(nowhere)).all());
    }

    private static void resources(Cluster cluster) throws Exception {
        String name = cluster.newTopic(1);
        Set<ConfigResource.Type> topics = Set.of(ConfigResource.Type.TOPIC);
        var only = cluster.admin.listConfigResources(topics, new ListConfigResourcesOptions()).all();
        Expect.that(Expect.success(only).contains(topic(name)), "the topic is listed");
        Expect.that(Expect.success(only).stream().allMatch(r -> r.type() == ConfigResource.Type.TOPIC), "only topics");
        var all = Expect.success(cluster.admin.listConfigResources().all());
        Expect.that(all.contains(topic(name)), "the topic is listed among all");
        Expect.that(all.stream().anyMatch(r -> r.type() == ConfigResource.Type.BROKER), "a broker is listed");
    }
}
