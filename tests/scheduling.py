"""Which tests share a worker: those of one Spark session, those that start JVMs, small ones.

pytest-xdist has `--dist loadgroup` for this, which does nothing under pytest 9.2: it writes a
group's name into the ids of tests, and these can no longer be written to.
"""

from typing import Final

from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

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
    "test_many_queries.py": "jvm",
    "test_news.py": "jvm",
    "test_pipeline_processes.py": "jvm",
}
# Folders whose modules stay whole: what a module makes once (codecs, fixtures) is made once.
WHOLE_MODULES: Final = ("tests/unit/", "tests/property/", "tests/scenario/")


def group_of(nodeid: str) -> str | None:
    """The group of a test that needs a JVM."""
    folder, _, module = nodeid.partition("::")[0].rpartition("/")
    return GROUPS.get(module) if folder == "tests/spark" else None


def scope_of(nodeid: str) -> str:
    """The name of what goes to one worker: a group, a module, or else the test alone."""
    module = nodeid.partition("::")[0] if nodeid.startswith(WHOLE_MODULES) else nodeid
    return group_of(nodeid) or module


class GroupScheduling(LoadScopeScheduling):
    """Gives whole scopes to one worker each, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Forget a scope that is done: xdist counts all that a worker ever had, after each test."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]
