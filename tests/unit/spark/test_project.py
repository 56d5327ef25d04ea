"""Projects of declared pipelines: their files, and how Spark's program is called for them."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ottla.errors import UsageRefused
from ottla.spark.pipelines.project import Project, environment_of


def test_a_project_reads_its_topic(tmp_path: Path) -> None:
    project = Project(tmp_path / "shop")
    files = project.create("127.0.0.1:9092", "orders")
    assert all(file.is_file() for file in files)
    assert project.spec.read_text().startswith("name: shop\nstorage: file:///")
    program = (tmp_path / "shop" / "transformations" / "records.py").read_text()
    compile(program, "records.py", "exec")
    assert """.option("subscribe", 'orders')""" in program


def test_a_directory_that_is_there_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(UsageRefused, match="is there already: choose another name"):
        Project(tmp_path).create("127.0.0.1:9092", "orders")


def test_a_directory_without_a_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageRefused, match="`ottla pipeline init NAME` makes a project"):
        Project(tmp_path).command("run", {}, ())


def test_sparks_program_gets_a_catalog_that_outlives_a_run(tmp_path: Path) -> None:
    project = Project(tmp_path / "shop")
    project.create("127.0.0.1:9092", "orders")
    command = project.command("run", {"spark.ui.enabled": "true"}, ("--full-refresh-all",))
    assert command[0].endswith("/bin/spark-pipelines")
    assert "spark.sql.catalogImplementation=hive" in command
    assert any(f"databaseName={tmp_path}/shop/catalog;" in word for word in command)
    assert "spark.ui.enabled=true" in command  # what is given wins
    assert "spark.ui.enabled=false" not in command
    assert command[-4:] == ["run", "--spec", str(project.spec), "--full-refresh-all"]


def test_sparks_program_finds_java_and_python(tmp_path: Path) -> None:
    environment = environment_of({"PATH": "/bin", "LANG": "C"}, tmp_path)
    assert environment["JAVA_HOME"] == str(tmp_path)
    assert environment["LANG"] == "C"
    assert environment["PATH"].endswith(":/bin")
    assert Path(environment["SPARK_HOME"], "bin", "spark-pipelines").is_file()
