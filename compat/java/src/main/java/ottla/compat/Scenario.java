package ottla.compat;

/** Something that users do with a cluster. It returns when all went as it should, and throws when not. */
@FunctionalInterface
interface Scenario {
    void play(Cluster cluster) throws Exception;
}
