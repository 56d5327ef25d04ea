# `make run` and `make test` are all a newcomer needs; both set up `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
BROKER_STAMP := $(VENV)/.broker-ready
SETUP := pyproject.toml setup.py src/ottla/spark/_kernel.c tools/setup.sh tools/install_packages.py
LISTEN ?= 127.0.0.1:9092
DATA ?= ./data
FEEDS ?=
SEEDS ?= 100
COMPILE := $(BIN)/uv pip compile --quiet --no-header --no-emit-index-url --no-emit-find-links --generate-hashes --universal \
  pyproject.toml
PYTEST := PYTHONHASHSEED=0 $(BIN)/python -m pytest
# A test that lists what a process imports would find coverage.py.
NOT_COVERED := --deselect tests/unit/cli/test_main.py::test_a_broker_starts_without_what_only_others_need
PYTEST_COVERED := PYTHONHASHSEED=0 OTTLA_EXAMPLES=0.2 $(BIN)/coverage run -m pytest
# Tests start hundreds of processes: each would compile the package anew if nobody kept the bytecode.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait for processes and timeouts as long as they compute: more workers than cores.
WORKERS ?= 5
SPREAD := -n $(WORKERS)
# pytest rewrites the asserts of every module. Once is enough: workers that begin together would all do it.
REWRITTEN := .cache/rewritten
# The full sizes of tests whose size can be set, and a seed that is new every time.
NIGHTLY := \
  OTTLA_EXAMPLES=10 OTTLA_MUTANTS=1000000 OTTLA_SEED=$(shell date +%s) \
  OTTLA_CRASH_ROUNDS=200 OTTLA_CRASH_POINTS=1000 OTTLA_CRASH_TRANSACTIONS=5000 OTTLA_CRASH_STOPS=20 \
  OTTLA_POWER_CUTS=20 OTTLA_UNCLEAN_MIB=1024 OTTLA_GROUP_KILLS=30 OTTLA_REBALANCE_ROUNDS=4 \
  OTTLA_CLUSTER_KILLS=20 OTTLA_CLUSTER_TRANSACTIONS=5000 OTTLA_CLUSTER_COORDINATOR_KILLS=20 \
  OTTLA_SIM_SEEDS=1000 OTTLA_SIM_SECONDS=30 OTTLA_PLANT_SEEDS=500 OTTLA_PLANT_SECONDS=30 OTTLA_CUT_KIB=64 OTTLA_CAPACITY_BROKERS=50 OTTLA_CAPACITY_PARTITIONS=20000 OTTLA_MOVED_PARTITIONS=60 \
  OTTLA_CHAOS=whole OTTLA_REBALANCE_ALL=1 OTTLA_OUTAGE_S=30 OTTLA_CRASH_DAMAGES=8000 OTTLA_DAMAGE_CASES=10000 OTTLA_REPLICA_DAMAGES=200 \
  OTTLA_SIM_SHARE_SEEDS=500 OTTLA_SIM_WAIT_SEEDS=500 OTTLA_SHARE_RECORDS=200000 OTTLA_SHARE_MEMBER_KILLS=30 OTTLA_SHARE_BROKER_KILLS=10 \
  OTTLA_QUEUE_RESTARTS=10 OTTLA_QUEUE_LOCKS=3 OTTLA_QUEUE_JOBS=40 OTTLA_CELERY_TASKS=5000 OTTLA_CELERY_KILLS=10 OTTLA_CELERY_ETAS=1000 \
  OTTLA_DELAY_RECORDS=100000 OTTLA_DELAY_KILLS=10 OTTLA_DELAY_PENDING=1000000 OTTLA_DELAY_TRANSACTIONS=5000 OTTLA_CLUSTER_DELAY_KILLS=10 OTTLA_CLOCK_STEPS=30 \
  OTTLA_SPARK_CHAOS_RECORDS=1000000 OTTLA_SPARK_CHAOS_SEED=$(shell date +%s) OTTLA_SPARK_STARTS=10

.DEFAULT_GOAL := help
.PHONY: help run broker setup quick test nightly sim chaos coverage check lint package format compat bench lock clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

run: $(STAMP) ## a broker on 127.0.0.1:9092 and the news example on it; with ONCE=1 it ends by itself; with KILLS=1 it is killed on its way
	@$(BIN)/python -m examples.news --data $(DATA) --listen $(LISTEN) $(if $(ONCE),--once) $(if $(KILLS),--kills) $(FEEDS:%=--feed %)

broker: $(BROKER_STAMP) ## only the broker, with its data in ./data as well; sets up what it needs, without Spark
	@$(BIN)/ottla serve --data $(DATA) --listen $(LISTEN) --hints

setup: $(STAMP) ## only the set-up: .venv with the package and all that tests need

$(BROKER_STAMP): $(SETUP) requirements-broker.lock
	@tools/setup.sh "$(PYTHON)" "$(VENV)" broker
	@touch $(BROKER_STAMP)

$(STAMP): $(SETUP) requirements.lock
	@tools/setup.sh "$(PYTHON)" "$(VENV)" all
	@touch $(BROKER_STAMP) $(STAMP)

quick: $(STAMP) ## unit tests, properties with a fifth of their examples, golden files, scenarios: under a minute
	OTTLA_EXAMPLES=0.2 $(PYTEST) -n 3 -m "not slow and not nightly" tests/unit tests/property tests/scenario

$(REWRITTEN): $(STAMP) $(shell find tests -name '*.py')
	@mkdir -p $(@D)
	@for part in tests/unit 'tests --ignore=tests/unit'; do $(PYTEST) -n 0 -q --collect-only $$part >/dev/null & done; wait
	@touch $@

test: $(STAMP) $(REWRITTEN) ## every kind of test, at a size that finds the bug within minutes
	$(PYTEST) $(SPREAD) -m "not nightly" --durations=20

nightly: $(STAMP) $(REWRITTEN) ## every test at its full size, and those that start a Spark of their own: hours; TESTS=tests/cli runs a part
	$(NIGHTLY) $(PYTEST) $(SPREAD) --durations=50 --timeout=14400 $(TESTS)

sim: $(STAMP) ## simulated clusters: SEEDS=n, or SEED=k with its trace; PROFILE=p; SECONDS=s; SHRINK=1 shortens a seed that fails
	@PYTHONPATH=tests $(BIN)/python -m sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) \
	  $(if $(PROFILE),--profile $(PROFILE)) $(if $(SECONDS),--secs $(SECONDS)) $(if $(SHRINK),--shrink)

chaos: $(STAMP) ## three brokers and three members of etcd under kills, cuts and power cuts: most of an hour, as root; SEED=k
	@PYTHONPATH=tests:. $(BIN)/python -m chaos $(if $(SEED),--seed $(SEED)) $(SIZES)

lint: $(STAMP) ## style, types, layering
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

package: $(STAMP) ## build sdist and wheel, install both into empty environments and use them, also from Spark
	$(BIN)/python -m tools.package

coverage: $(STAMP) ## branch coverage of unit tests, properties and scenarios, by room, against its floors: minutes
	@rm -rf .cache/coverage && mkdir -p .cache/coverage
	$(PYTEST_COVERED) -n 2 -q -m "not nightly" $(NOT_COVERED) tests/unit tests/property tests/scenario
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet -o .cache/coverage/report.json
	$(BIN)/python -m tools.coverage_floor

check: $(STAMP) ## lint beside package, then make test: what CI runs
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint package $(REWRITTEN)
	@$(MAKE) --no-print-directory test

format: $(STAMP) ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

compat: $(STAMP) ## clients, tools and frameworks of Kafka's ecosystem; ONLY=kafka_go runs one part, WRITE=1 writes the list of what passes
	$(PYTEST) compat$(ONLY:%=/test_%.py) -m compat -r fEX $(if $(WRITE),--write-results)

bench: $(STAMP) ## Ottla beside Kafka, NATS and RabbitMQ on this machine; prints ratios; with CLUSTER=1 three brokers beside three of Kafka
	@tools/setup_bench.sh "$(VENV)"
	$(BIN)/python -m bench$(if $(CLUSTER),.cluster)

lock: $(STAMP) ## choose versions anew and write them to requirements.lock, and the broker's to requirements-broker.lock
	$(BIN)/pip install --quiet uv
	$(COMPILE) --group dev -o requirements.lock --upgrade
	$(COMPILE) --constraint requirements.lock -o requirements-broker.lock --upgrade

clean: ## remove what make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
