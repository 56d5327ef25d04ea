package ottla.compat;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;

/**
 * A member of a group with a thread of its own. It commits what a poll brought before the next poll.
 *
 * As a program, `GroupMember HOST:PORT GROUP TOPIC PROTOCOL`, it is a member until somebody kills it, and
 * says `assigned` when it owns something.
 */
final class GroupMember implements AutoCloseable, ConsumerRebalanceListener {
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Thread thread;
    private final Set<TopicPartition> owned = ConcurrentHashMap.newKeySet();
    private final List<String> values = new ArrayList<>();
    private volatile boolean isOver;
    private volatile Throwable problem;
    private volatile int changes;

    GroupMember(KafkaConsumer<byte[], byte[]> consumer, Consumer<GroupMember> subscribe) {
        this.consumer = consumer;
        subscribe.accept(this);
        this.thread = new Thread(this::run, "member");
        this.thread.start();
    }

    static GroupMember of(Cluster cluster, Map<String, Object> settings, String topic) {
        KafkaConsumer<byte[], byte[]> consumer = cluster.consumer(settings);
        return new GroupMember(consumer, member -> consumer.subscribe(List.of(topic), member));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = GroupScenarios.settings(arguments[1], arguments[3]);
        try (Cluster cluster = new Cluster(arguments[0]);
                GroupMember member = of(cluster, settings, arguments[2])) {
            while (member.owned().isEmpty()) {
                Thread.sleep(10);
            }
            System.out.println("assigned");
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    private void run() {
        try {
            while (!isOver) {
                var found = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<byte[], byte[]> record : found) {
                    note(Cluster.text(record.value()));
                }
                if (!found.isEmpty()) {
                    commit();
                }
            }
        } catch (WakeupException toldToEnd) {
            // that is what it was told
        } catch (Throwable thrown) {
            problem = thrown;
        } finally {
            consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)));
        }
    }

    private void commit() {
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException later) {
            // the next poll takes part in it, and what was read is committed with the next batch
        }
    }

    private synchronized void note(String value) {
        values.add(value);
    }

    synchronized List<String> values() {
        return List.copyOf(values);
    }

    Set<TopicPartition> owned() {
        if (problem != null) {
            throw new AssertionError("a member ended", problem);
        }
        return Set.copyOf(owned);
    }

    /** How often this member was told of a change. */
    int changes() {
        return changes;
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
        owned.addAll(assigned);
        changes++;
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
        owned.removeAll(revoked);
        changes++;
    }

    @Override
    public void close() throws InterruptedException {
        isOver = true;
        thread.join(Duration.ofSeconds(Expect.PATIENCE_S).toMillis());
        Expect.that(!thread.isAlive(), "a member does not end");
    }
}
