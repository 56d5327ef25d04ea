package ottla.compat;

import java.io.File;
import java.util.Map;

import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

/** Prints the leader epochs of a partition's directory, read as a broker of Apache Kafka reads them. */
public final class ReadEpochs {
    private ReadEpochs() {}

    public static void main(String[] arguments) throws Exception {
        File file = LeaderEpochCheckpointFile.newFile(new File(arguments[0]));
        for (EpochEntry entry : new LeaderEpochCheckpointFile(file, new LogDirFailureChannel(1)).read()) {
            Main.print(Map.of("epoch", entry.epoch(), "start", entry.startOffset()));
        }
    }
}
