package ottla.compat;

import java.time.Duration;
import java.util.List;
import java.util.Optional;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Uuid;

/** Topics as an administrator handles them. */
final class Topics {
    private Topics() {}

    static Uuid create(Admin admin, String name, int partitions) throws Exception {
        NewTopic topic = new NewTopic(name, Optional.of(partitions), Optional.empty());
        return Expect.success(admin.createTopics(List.of(topic)).topicId(name));
    }

    /** A change is known everywhere in a moment, not at once: that is what Kafka promises. */
    static TopicDescription describe(Admin admin, String name) throws Exception {
        await(() -> Expect.success(admin.listTopics().names()).contains(name), name + " is not there");
        return Expect.success(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
    }

    static void awaitGone(Admin admin, String name) throws Exception {
        await(() -> !Expect.success(admin.listTopics().names()).contains(name), name + " is still there");
    }

    static void awaitPartitions(Admin admin, String name, int count) throws Exception {
        await(() -> describe(admin, name).partitions().size() == count, name + " has not " + count + " partitions");
    }

    static void await(Condition condition, String problem) throws Exception {
        long deadline = System.nanoTime() + Duration.ofSeconds(10).toNanos();
        while (!condition.holds()) {
            Expect.that(System.nanoTime() < deadline, problem);
            Thread.sleep(20);
        }
    }

    @FunctionalInterface
    interface Condition {
        boolean holds() throws Exception;
    }
}
