package ottla.compat;

import java.time.Duration;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * A program of Kafka Streams with exactly_once_v2 that counts the records of each key, over a repartition topic
 * and a store: `WordCount HOST:PORT APPLICATION SOURCE TARGET STATE`. It says `running` and goes on until somebody
 * kills it.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.putAll(Map.of(
                "bootstrap.servers", arguments[0],
                "application.id", arguments[1],
                "state.dir", arguments[4],
                "processing.guarantee", "exactly_once_v2",
                "commit.interval.ms", "100",
                "replication.factor", "1",
                "consumer.auto.offset.reset", "earliest",
                "consumer.session.timeout.ms", "6000",
                "consumer.heartbeat.interval.ms", "1000"));
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()))
                .selectKey((key, value) -> value)
                .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.with(Serdes.String(), Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(problem -> {
            problem.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler
                    .StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                System.out.println("running");
                System.out.flush();
            }
        });
        streams.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        Thread.currentThread().join();
    }
}
