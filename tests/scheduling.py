"""Which tests share a worker: those of one Spark session, and those that start JVMs of their own.

pytest-xdist has `--dist loadgroup` for this, which does nothing under pytest 9.2: it writes a
group's name into the ids of tests, and these can no longer be written to.
"""

from typing import Final

from xdist.scheduler.loadscope import LoadScopeScheduling

# Modules of tests/spark by the group that they are in; all others need no JVM.
GROUPS: Final = {
    "test_delta_sink.py": "session",
    "test_docs_pages.py": "session",
    "test_json_values.py": "session",
    "test_pipelines.py": "session",
    "test_queries.py": "session",
    "test_restarts.py": "session",
    "test_streams.py": "session",
    "test_deployments.py": "jvm",
    "test_exactly_once.py": "jvm",
    "test_example.py": "jvm",
    "test_news.py": "jvm",
    "test_pipeline_processes.py": "jvm",
}


class GroupScheduling(LoadScopeScheduling):
    """Gives whole groups to one worker each, and all other tests to whoever has nothing to do."""

    def _split_scope(self, nodeid: str) -> str:
        folder, _, module = nodeid.partition("::")[0].rpartition("/")
        return GROUPS.get(module, nodeid) if folder == "tests/spark" else nodeid
