package ottla.compat;

import java.util.concurrent.atomic.AtomicInteger;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A Flink job that copies a topic into another, exactly once: `FlinkJob HOST:PORT SOURCE TARGET COUNT FAILURES`. It reads
 * what is there, fails FAILURES times on its way and goes on from its last checkpoint each time.
 */
public final class FlinkJob {
    private static final int PARALLELISM = 2;
    private static final int CHECKPOINT_MS = 200;
    private static final AtomicInteger MAPPED = new AtomicInteger();
    private static final AtomicInteger FAILED = new AtomicInteger();

    private FlinkJob() {}

    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "10");
        settings.setString("restart-strategy.fixed-delay.delay", "100 ms");
        var environment = StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, settings);
        environment.enableCheckpointing(CHECKPOINT_MS);
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(arguments[0])
                .setTopics(arguments[1])
                .setGroupId("flink")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setBounded(OffsetsInitializer.latest())
                .setProperty("isolation.level", "read_committed")
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(arguments[0])
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("flink")
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(arguments[2])
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), arguments[1])
                .map(new Failing(Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4])))
                .sinkTo(sink);
        environment.execute("copy");
        System.out.println("failed " + FAILED.get() + " times");
    }

    /** Passes every record on, slowly enough for checkpoints in between, and fails each time another part is done. */
    private static final class Failing implements MapFunction<String, String> {
        private static final long serialVersionUID = 1;
        private final int count;
        private final int failures;

        Failing(int count, int failures) {
            this.count = count;
            this.failures = failures;
        }

        @Override
        public String map(String value) throws Exception {
            Thread.sleep(1);
            int mapped = MAPPED.incrementAndGet();
            int failed = FAILED.get();
            if (failed < failures && mapped > (failed + 1) * count / (failures + 1) && FAILED.compareAndSet(failed, failed + 1)) {
                throw new IllegalStateException("failure " + (failed + 1) + " of " + failures);
            }
            return value;
        }
    }
}
