"""PySpark reads and writes topics: `format("ottla")`, without a jar."""
