"""PySpark reads topics: `format("ottla")`, without a jar.

    import ottla.spark

    spark = ottla.spark.session()
    orders = spark.readStream.format("ottla").option("kafka.bootstrap.servers", ...)

`session` brings every setting along; `register` adds the format to a session of your own.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.spark.registration import register as register
    from ottla.spark.session import session as session

__all__ = ["register", "session"]


def __getattr__(name: str) -> object:
    # On first use: the package is also imported where there is no Spark, for its plain parts.
    if name == "register":
        from ottla.spark.registration import register  # noqa: PLC0415

        return register
    if name == "session":
        from ottla.spark.session import session  # noqa: PLC0415

        # The import has put the module of that name here: what is meant is its function.
        globals()[name] = session
        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
