package ottla.compat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one virtual machine: starting one for each of two
 * hundred commands takes many times as long as the commands.
 *
 * Reads one JSON object a line, {"main": class, "arguments": [...], "input": text}, and prints one for each:
 * {"status": exit code or null when it hangs, "out": text, "err": text}. A tool ends when it exits, as in a
 * machine of its own; then its shutdown hooks run.
 */
public final class ToolHost {
    private static final int TOOL_S = 60;
    private static final ObjectMapper JSON = new ObjectMapper();

    private ToolHost() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            answers.flush();
        }
        Exit.resetExitProcedure();
        System.exit(0); // a tool that hangs must not keep us
    }

    private static Map<String, Object> run(JsonNode command) throws Exception {
        List<String> words = new ArrayList<>();
        command.get("arguments").forEach(word -> words.add(word.asText()));
        Method main = Class.forName(command.get("main").asText()).getMethod("main", String[].class);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(command.get("input").asText().getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        Map<String, Object> result = new LinkedHashMap<>();
        try {
            result.put("status", status(main, words.toArray(String[]::new)));
        } finally {
            System.out.flush();
            System.err.flush();
            System.setOut(new PrintStream(OutputStream.nullOutputStream())); // what comes late belongs to nobody
            System.setErr(new PrintStream(OutputStream.nullOutputStream()));
        }
        result.put("out", out.toString(StandardCharsets.UTF_8));
        result.put("err", err.toString(StandardCharsets.UTF_8));
        return result;
    }

    /** The exit code of a tool; null if it does not end. */
    private static Integer status(Method main, String[] words) throws InterruptedException {
        AtomicReference<Integer> status = new AtomicReference<>();
        List<Runnable> hooks = new ArrayList<>();
        Exit.Procedure exit = (code, message) -> {
            status.compareAndSet(null, code); // a tool may take our exception for one of its own, and exit again
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Thread tool = new Thread(() -> {
            try {
                main.invoke(null, (Object) words);
                status.compareAndSet(null, 0);
            } catch (InvocationTargetException ended) {
                if (!(ended.getCause() instanceof Exited) && status.compareAndSet(null, 1)) {
                    ended.getCause().printStackTrace();
                }
            } catch (IllegalAccessException impossible) {
                throw new IllegalStateException(impossible);
            }
        }, "tool");
        tool.setDaemon(true);
        tool.start();
        tool.join(TOOL_S * 1000L);
        for (Runnable hook : hooks) {
            Thread last = new Thread(hook, "shutdown hook");
            last.setDaemon(true);
            last.start();
            last.join(TOOL_S * 1000L);
        }
        return status.get();
    }

    /** Thrown where a tool wishes to end its virtual machine. */
    private static final class Exited extends Error {
        private static final long serialVersionUID = 1;
    }
}
