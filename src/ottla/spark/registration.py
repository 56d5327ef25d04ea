"""The data sources that Spark registers as `ottla` and `ottla-delta`.

Light to import: Spark's lookup imports it in every session.
"""

from collections.abc import Mapping
from importlib.util import find_spec

from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

# ruff: noqa: PLC0415  # Arrow, numpy and the client are imported where they are needed


class OttlaDataSource(DataSource):
    """Topics, read and written as Spark's Kafka connector does."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> str:
        from ottla.spark.column_options import parse_columns
        from ottla.spark.columns import ddl_of
        from ottla.spark.registry import resolve_columns

        return ddl_of(resolve_columns(parse_columns(_plain(self.options))))

    def reader(self, schema: StructType) -> DataSourceReader:
        from ottla.spark.source import batch_reader

        return batch_reader(_plain(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from ottla.spark.source import stream_reader

        return stream_reader(_plain(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ottla.spark.sink import batch_writer

        return batch_writer(_plain(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from ottla.spark.sink import stream_writer

        return stream_writer(_plain(self.options), schema)


class DeltaDataSource(DataSource):
    """Delta tables, written exactly once."""

    @classmethod
    def name(cls) -> str:
        return "ottla-delta"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _need_deltalake()
        from ottla.spark.delta_sink import batch_writer

        return batch_writer(_plain(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        _need_deltalake()
        from ottla.spark.delta_sink import stream_writer

        return stream_writer(_plain(self.options), schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("ottla")` and `format("ottla-delta")` known to a session, and `append` the mode
    of `df.write.format("ottla")` without one.

    Where the package is installed Spark finds them by itself, unless another package named
    `pyspark_*` is broken: then it finds none.
    """
    from ottla.spark.save_mode import append_by_default

    if is_remote():
        from pyspark.sql.connect.readwriter import DataFrameWriter as RemoteDataFrameWriter

        append_by_default(RemoteDataFrameWriter)
    else:
        append_by_default(DataFrameWriter)
    for source in (OttlaDataSource, DeltaDataSource):
        if not _is_known(spark, source.name()):
            spark.dataSource.register(source)


def _is_known(spark: SparkSession, name: str) -> bool:
    """True if Spark has found the format. Registered once more, every stream would log a warning.

    Spark Connect does not tell.
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def _plain(options: Mapping[str, str]) -> dict[str, str]:
    return dict(options.items())


def _need_deltalake() -> None:
    if find_spec("deltalake") is None:
        raise ImportError(
            "ottla-delta needs deltalake on driver and executors: pip install 'ottla[lake]'"
        )
