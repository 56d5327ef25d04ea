package ottla.compat;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Plays scenarios against the cluster at an address: `Main --list` names them, `Main HOST:PORT` plays
 * those whose names come on standard input, one a line.
 *
 * Prints one JSON object a line: {"scenario": name, "problem": null or why it failed}, and before that
 * {"restart": signal} when the broker is to be restarted, which is to be answered with a line
 * `restarted` on standard input.
 */
public final class Main {
    private static final int SCENARIO_S = 120;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    private Main() {}

    public static void main(String[] arguments) throws IOException {
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        List.of(RecordScenarios.all(), ConsumerScenarios.all(), TopicScenarios.all(), ConfigScenarios.all(),
                ClusterScenarios.all(), GroupScenarios.all(), RestartScenarios.all(), TransactionScenarios.all(),
                ShareScenarios.all(), WaitingScenarios.all(), DeadLetterScenarios.all())
                .forEach(scenarios::putAll);
        if (arguments[0].equals("--list")) {
            scenarios.keySet().forEach(System.out::println);
            return;
        }
        ExecutorService stage = Executors.newCachedThreadPool();
        try (Cluster cluster = new Cluster(arguments[0])) {
            for (String name = readLine(); name != null; name = readLine()) {
                Map<String, Object> result = new LinkedHashMap<>();
                result.put("scenario", name);
                result.put("problem", play(stage, scenarios.get(name), cluster));
                print(result);
            }
        }
        System.exit(0); // a scenario that hangs must not keep us
    }

    private static String play(ExecutorService stage, Scenario scenario, Cluster cluster) {
        Future<?> played = stage.submit(() -> {
            scenario.play(cluster);
            return null;
        });
        try {
            played.get(SCENARIO_S, TimeUnit.SECONDS);
            return null;
        } catch (ExecutionException failed) {
            StringWriter text = new StringWriter();
            failed.getCause().printStackTrace(new PrintWriter(text));
            return text.toString();
        } catch (TimeoutException | InterruptedException late) {
            played.cancel(true);
            return "not over after " + SCENARIO_S + " s";
        }
    }

    static synchronized void print(Map<String, Object> line) {
        try {
            System.out.println(JSON.writeValueAsString(line));
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
        System.out.flush();
    }

    static String readLine() throws IOException {
        return INPUT.readLine();
    }
}
