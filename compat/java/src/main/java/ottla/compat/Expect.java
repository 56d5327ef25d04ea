package ottla.compat;

import java.util.Objects;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** What a scenario holds to be true. */
final class Expect {
    static final int PATIENCE_S = 30;

    private Expect() {}

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object expected, Object found, String what) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError(what + ": expected " + expected + ", found " + found);
        }
    }

    static <T> T success(Future<T> future) throws Exception {
        return future.get(PATIENCE_S, TimeUnit.SECONDS);
    }

    /** The call fails, with exactly this exception, which is returned. */
    static Throwable failure(Class<? extends Throwable> expected, Future<?> future) throws Exception {
        Object answer;
        try {
            answer = future.get(PATIENCE_S, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            sameClass(expected, failed.getCause());
            return failed.getCause();
        }
        throw new AssertionError("expected " + expected.getSimpleName() + ", found the answer " + answer);
    }

    /** The same for a call that throws by itself. */
    static void failure(Class<? extends Throwable> expected, Attempt attempt) {
        try {
            attempt.run();
        } catch (Throwable thrown) {
            sameClass(expected, thrown);
            return;
        }
        throw new AssertionError("expected " + expected.getSimpleName() + ", nothing was thrown");
    }

    private static void sameClass(Class<? extends Throwable> expected, Throwable thrown) {
        if (thrown.getClass() != expected) {
            throw new AssertionError("expected " + expected.getSimpleName() + ", found " + thrown, thrown);
        }
    }

    @FunctionalInterface
    interface Attempt {
        void run() throws Exception;
    }
}
