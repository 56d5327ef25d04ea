#!/usr/bin/env bash
# Fetches what `make compat` runs: Apache Kafka and Spark's Kafka connector from Maven Central, the tests of
# kafka-python from PyPI and those of aiokafka, which its source distribution leaves out, from its repository.
# Nothing here is optional: what cannot be had is said in one line, and ends it.
set -euo pipefail
venv=$1
cache=.cache/compat
program=compat/java/target/compat.jar

missing() { echo "make compat: $1" >&2; exit 2; }

java_version=$(java -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -1 || true)
[ "${java_version:-0}" -ge 17 ] || missing "Java 17 or newer is missing (Debian: apt-get install openjdk-17-jdk-headless)"
command -v javac >/dev/null || missing "a Java compiler is missing (Debian: apt-get install openjdk-17-jdk-headless)"
command -v mvn >/dev/null || missing "Maven is missing (Debian: apt-get install maven)"
mkdir -p "$cache"

is_built() { [ -f "$program" ] && [ -d "$cache/jars" ] && [ -z "$(find compat/java/pom.xml compat/java/src -newer "$program")" ]; }

if ! is_built; then
  echo "building compat/java; the first time Maven fetches Apache Kafka (about a minute)"
  rm -rf "$cache/jars"
  mvn -q -B -f compat/java/pom.xml package dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$PWD/$cache/jars" >"$cache/maven.log" 2>&1 ||
    { rm -rf "$cache/jars"; missing "compat/java could not be built: see $cache/maven.log"; }
fi

tools/fetch_spark_connector.sh "$venv" "$cache/spark-connector" ||
  missing "Spark's Kafka connector could not be fetched from Maven Central: see $cache/spark-connector.log"

version=$("$venv/bin/python" -c 'import importlib.metadata; print(importlib.metadata.version("kafka-python"))')
[ -f "$cache/kafka_python-$version.tar.gz" ] ||
  "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$cache" \
    "kafka-python==$version" || missing "kafka-python's source distribution could not be fetched"

version=$("$venv/bin/python" -c 'import importlib.metadata; print(importlib.metadata.version("aiokafka"))')
tests="$cache/aiokafka-$version.tests.tar.gz"
source="https://github.com/aio-libs/aiokafka/archive/refs/tags/v$version.tar.gz"
[ -f "$tests" ] || { curl -fsSL --max-time 120 "$source" -o "$tests.part" && mv "$tests.part" "$tests"; } ||
  missing "aiokafka's tests could not be fetched from $source"
