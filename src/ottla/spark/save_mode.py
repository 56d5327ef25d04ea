"""`df.write.format("ottla")` without a mode appends, as with Spark's Kafka connector.

Spark refuses its own default, `errorifexists`, for every Python data source, before any Python code
is called. So `register` and `session` make `append` the default of PySpark's writers for this
format. Other formats are written as before.
"""

from typing import Any, Final

FORMAT: Final = "ottla"
_SPARK_DEFAULT: Final = "errorifexists"
_HAS_MODE: Final = "_ottla_has_mode"  # attributes of a writer
_APPENDS: Final = "_ottla_appends"


def append_by_default(writer: type[Any]) -> None:
    """Change a writer class of PySpark, classic or Connect; a second call changes nothing."""
    if hasattr(writer, _HAS_MODE):
        return
    choose_format, choose_mode = writer.format, writer.mode

    def format(self: Any, source: str) -> Any:  # noqa: A001  # the name that PySpark has
        found = choose_format(self, source)
        if not getattr(self, _HAS_MODE):
            appends = source.lower() == FORMAT
            if appends or getattr(self, _APPENDS):
                choose_mode(self, "append" if appends else _SPARK_DEFAULT)
            setattr(self, _APPENDS, appends)
        return found

    def mode(self: Any, saveMode: str | None) -> Any:  # noqa: N803
        if saveMode:
            setattr(self, _HAS_MODE, True)
        return choose_mode(self, saveMode)

    setattr(writer, _HAS_MODE, False)
    setattr(writer, _APPENDS, False)
    writer.format, writer.mode = format, mode
