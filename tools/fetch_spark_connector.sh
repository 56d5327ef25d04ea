#!/usr/bin/env bash
# Fetches Spark's own Kafka connector from Maven Central into DIRECTORY: the one of the Spark that VENV has, or, where
# Central does not have that, the newest that is known to run on it. Says which; fails if there is none.
set -euo pipefail
venv=$1 directory=$2
log=$directory.log

version=$("$venv/bin/python" -c 'import importlib.metadata; print(importlib.metadata.version("pyspark"))')
[ -f "$directory/for-$version" ] && exit 0

fetch() { # VERSION OF THE CONNECTOR, OF ITS TOKEN PROVIDER
  rm -rf "$directory"
  mvn -q -B -f compat/spark/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
    -Dconnector.version="$1" -Dtokens.version="$2" -DoutputDirectory="$(realpath -m "$directory")" >>"$log" 2>&1
}

mkdir -p "$(dirname "$directory")"
: >"$log"
if fetch "$version" "$version"; then
  echo "Spark's Kafka connector $version"
elif fetch 4.2.0 4.2.0 || fetch 4.2.0 4.0.0; then
  echo "Spark's Kafka connector 4.2.0: Maven Central has none for Spark $version"
else
  rm -rf "$directory"
  exit 1
fi
touch "$directory/for-$version"
