"""Python workers import the installed PySpark, which is compiled, and not Spark's zip of it."""

import sys
import sysconfig
from pathlib import Path

import pytest

from ottla.spark.spark_home import find_spark_home, link_spark_home

OURS = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
INSTALLED = Path(sysconfig.get_path("purelib"), "pyspark")


def package(directory: Path) -> Path:
    """What pip installs of Spark, in small."""
    for name in ("bin", "jars", "sbin", "python/lib", "sql"):
        (directory / name).mkdir(parents=True)
    (directory / "bin" / "spark-submit").touch()
    (directory / "python" / "lib" / "pyspark.zip").touch()
    return directory


def test_the_home_has_all_that_spark_needs_and_no_zip(tmp_path: Path) -> None:
    home = link_spark_home(package(tmp_path / "pyspark"), tmp_path / "cache")
    assert (home / "bin" / "spark-submit").exists()
    assert sorted(one.name for one in home.iterdir()) == ["bin", "jars", "sbin"]


def test_the_home_is_made_once_and_mended(tmp_path: Path) -> None:
    spark = package(tmp_path / "pyspark")
    home = link_spark_home(spark, tmp_path / "cache")
    (home / "jars").unlink()
    assert link_spark_home(spark, tmp_path / "cache") == home
    assert (home / "jars").is_dir()


def test_each_installation_has_a_home_of_its_own(tmp_path: Path) -> None:
    homes = {
        link_spark_home(package(tmp_path / name / "pyspark"), tmp_path / "cache")
        for name in ("one", "two")
    }
    assert len(homes) == 2


def test_an_installed_spark_gets_the_home(tmp_path: Path) -> None:
    assert find_spark_home(OURS, tmp_path, INSTALLED) == link_spark_home(INSTALLED, tmp_path)


@pytest.mark.parametrize(
    "environment",
    [
        OURS | {"SPARK_HOME": "/opt/spark"},
        OURS | {"PYSPARK_PYTHON": "/usr/bin/other-python"},
        OURS | {"PYSPARK_DRIVER_PYTHON": "/usr/bin/other-python"},
        {},
    ],
    ids=["home", "python of tasks", "python of sources", "spark chooses"],
)
def test_what_a_user_has_set_stays(environment: dict[str, str], tmp_path: Path) -> None:
    assert find_spark_home(environment, tmp_path, INSTALLED) is None


def test_a_spark_that_only_this_process_finds_keeps_its_zip(tmp_path: Path) -> None:
    assert find_spark_home(OURS, tmp_path, package(tmp_path / "pyspark")) is None
