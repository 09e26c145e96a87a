# `make serve` runs the broker, `make test` passes the tests; both set up all they need in .venv first.
SHELL := /bin/bash -o pipefail
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

SECONDS ?= 30
SEED ?= 1
RUNS ?= 100
KILLS ?= 8
FORMAT ?= delta
MINUTES ?= 30
MESSAGES ?= 3000000
APART ?= 0
PYTHONS ?= python3.12 python3.13
PYSPARKS ?= 4.0 4.3
EXTRAS ?= streams,auth
ASSERT_TESTS ?= tests/adversity tests/conformance tests/durable tests/listeners tests/clients

# without the files that it forbids, each of the many processes of the tests compiles anew what it imports
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup build serve demo test test-unit test-loaded test-long attack client-wheel manual sbom deb deb-test wheel-test pythons pysparks format bench bench-engine bench-store bench-pipeline bench-operations bench-bridge bench-cluster bench-cluster-log bench-cluster-split screenshots docs asan race assert fuzz crash crash-pipeline simulate cluster-test cluster-crash cluster-soak soak

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) build ## virtual environment in .venv, the build, the package and its command

$(STAMP): pyproject.toml
	@echo "Setting up $(VENV): packages and the compiler (2 minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check 'setuptools>=77' Cython==3.3.1
	rm -rf src/*.egg-info  # of a wheel that was built: its entry points would be found before those of now
	@# while the compiler works, packages come
	$(BIN)/python setup.py --quiet build_ext --inplace & \
	TIDEMQ_BUILD=none $(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[test]'; \
	installed=$$?; wait $$! && exit $$installed
	touch $@

build: $(STAMP) ## compile what changed; a performance hint fails
	@flock $(STAMP) $(BIN)/python setup.py --quiet build_ext --inplace

serve: setup ## run the broker on port 1883
	$(BIN)/tidemq serve

demo: setup ## devices, a stream, tables by Spark, an alarm, a plot: in a minute or two (Java 17 or newer)
	$(BIN)/python examples/lake

# two processes: these compute, and each has to find all tests first
test-unit: setup ## the quick loop: modules by themselves and the source, in a minute
	TIDEMQ_TEST_EXAMPLES=few $(BIN)/pytest -n 2 tests/unit tests/source

test: setup ## run the tests, four files at a time, because most of them wait; then 3 million messages of a split
	$(BIN)/pytest -n 4
	@mkdir -p build
	$(BIN)/python benchmarks/cluster_split.py --messages 3000000 --limit 600 --output build/split

test-loaded: setup ## the same beside four processes that only compute: no test may depend on the clock
	$(BIN)/python tools/busy.py 4 $(BIN)/pytest -n 4

# in two processes: the first Spark session of a process leaves its settings to all that come after it
test-long: setup ## what `make test` leaves out: benchmarks in small, Spark Connect, all crashes of the pipeline, packages (10 minutes)
	TIDEMQ_TEST_EXAMPLES=all $(BIN)/pytest -n 2 -m hypothesis tests/unit tests/client
	$(BIN)/pytest -m long --ignore=tests/pipeline
	$(BIN)/pytest -m long tests/pipeline
	TIDEMQ_TEST_CRASH_KILLS=3 $(BIN)/pytest tests/pipeline_crash
	TIDEMQ_TEST_CRASH_KILLS=3 TIDEMQ_TEST_CRASH_FORMAT=iceberg $(BIN)/pytest tests/pipeline_crash

attack: setup ## 1,000 hostile connections for a minute beside a publisher and a subscriber that behave
	$(BIN)/pytest -m long -s tests/adversity/test_attack.py

client-wheel: setup ## build the wheel of the client alone, tidemq-client, into dist/
	$(BIN)/python tools/client_distribution.py dist

manual: setup ## the manual page, and completion for bash, zsh and fish, into build/manual/
	$(BIN)/python tools/manual.py build/manual

sbom: setup ## what an installation is made of, as CycloneDX, into dist/tidemq.cdx.json (EXTRAS=streams,auth)
	rm -rf build/sbom
	$(BIN)/python -m build --wheel --no-isolation --outdir build/sbom
	$(BIN)/python -m venv --without-pip build/sbom/installed
	$(BIN)/pip --python build/sbom/installed/bin/python install --quiet "$$(echo build/sbom/tidemq-*.whl)[$(EXTRAS)]"
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file dist/tidemq.cdx.json build/sbom/installed/bin/python

deb: ## Debian package, into dist/ (3 minutes; root installs what the build needs)
	tools/deb.sh dist

deb-test: setup deb ## install it, start it, upgrade it with its data and purge it, in a Debian of its own (as root)
	$(BIN)/pytest -m long tests/packages/test_debian.py

wheel-test: setup ## build the wheel; pass the tests of behaviour against it, installed, with the source tree hidden
	TIDEMQ_TEST_WHEEL=whole $(BIN)/pytest tests/wheel

pythons: ## the same with other Pythons, each in an environment of its own (PYTHONS="python3.12 python3.13")
	@for python in $(PYTHONS); do \
		$(MAKE) VENV=build/$$(basename $$python) PYTHON=$$python wheel-test || exit 1; \
	done

pysparks: setup ## the extra `spark` with other versions of Spark, each in an environment of its own (PYSPARKS="4.0 4.3")
	TIDEMQ_TEST_PYSPARKS="$(PYSPARKS)" $(BIN)/pytest -m long tests/wheel/test_spark_extra.py

format: setup ## put imports and lines in order
	$(BIN)/ruff check --quiet --fix
	$(BIN)/ruff format

bench: setup ## compare brokers under the same load: TideMQ, Mosquitto, amqtt, aedes, RabbitMQ (20 minutes)
	$(BIN)/python benchmarks/compare.py

bench-engine: setup ## the engine's goals: deliveries per CPU-second beside Mosquitto's, by reactors (20 minutes)
	$(BIN)/python benchmarks/run.py

bench-store: setup ## what it costs to keep messages on disk, beside Mosquitto (10 minutes; Debian package mosquitto)
	$(BIN)/python benchmarks/durable.py

bench-pipeline: setup ## streams to Spark and into tables, reconcile, percentiles, beside Polars and DuckDB (30 minutes; Java)
	$(BIN)/python benchmarks/pipeline.py

bench-operations: setup ## what it costs to be looked at: metrics, lists of clients (5 minutes)
	$(BIN)/python benchmarks/operations.py

bench-bridge: setup ## messages over TideMQ's bridge and Mosquitto's (5 minutes; Debian package mosquitto)
	$(BIN)/python benchmarks/bridge.py

bench-cluster: setup ## two nodes beside one: CPU of messages, time of PUBACK, failover (10 minutes)
	$(BIN)/python benchmarks/cluster.py

bench-cluster-log: setup ## a node's log copied to another node's nats-server: operations a second, time of a copy (2 minutes)
	$(BIN)/python benchmarks/cluster_log.py --keep

bench-cluster-split: setup ## four nodes, split while both sides fill queues, until they are one again (MESSAGES=3000000, APART=0)
	$(BIN)/python benchmarks/cluster_split.py --messages $(MESSAGES) --apart $(APART)

screenshots: setup ## pictures of the dashboard for the documents, by Debian's chromium (a minute)
	$(BIN)/python tests/browser/screenshots.py

docs: setup ## the site of these documents, into build/site; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

asan: setup ## load and fuzzing with the address and leak sanitizers (SECONDS=30 each; the first build takes minutes)
	LEAKS=1 PYTHON=$(BIN)/python tools/variant.sh address tests/adversity/sanitized_load.py --seconds $(SECONDS) --seed $(SEED)
	PYTHON=$(BIN)/python tools/variant.sh address tests/fuzz/fuzz_connection.py --seconds $(SECONDS) --seed $(SEED)
	PYTHON=$(BIN)/python tools/variant.sh address tests/fuzz/fuzz_transport.py --seconds $(SECONDS) --seed $(SEED)

race: setup ## load with the thread sanitizer (SECONDS=30)
	PYTHON=$(BIN)/python tools/variant.sh thread tests/adversity/sanitized_load.py --seconds $(SECONDS) --seed $(SEED)

assert: setup ## tests of behaviour, fuzzing, a soak and crashes in a build that checks invariants; planted breaks (an hour)
	PYTHON=$(BIN)/python tools/variant.sh assert -m pytest -n 4 --capture=sys -p no:cacheprovider $(ASSERT_TESTS)
	PYTHON=$(BIN)/python tools/variant.sh assert tests/fuzz/fuzz_connection.py --seconds $(SECONDS) --seed $(SEED)
	PYTHON=$(BIN)/python tools/variant.sh assert tests/fuzz/fuzz_transport.py --seconds $(SECONDS) --seed $(SEED)
	PYTHON=$(BIN)/python tools/variant.sh assert tests/soak --minutes 3 --seed $(SEED)
	PYTHON=$(BIN)/python tools/variant.sh assert tests/crash --runs 20 --seed $(SEED)
	PYTHON=$(BIN)/python tools/variant.sh assert tests/crash --wills 300 --kills 4 --runs 3 --seed $(SEED)
	$(BIN)/python tests/assertions

fuzz: setup ## fuzzing of the parser, of TLS, WebSocket and PROXY, and of whole connections (SECONDS=30 each, SEED=1)
	$(BIN)/python tests/fuzz/fuzz_wire.py --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python tests/fuzz/fuzz_transport.py --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python tests/fuzz/fuzz_connection.py --seconds $(SECONDS) --seed $(SEED)

crash: setup ## kill -9, bad disks and power loss by seed (RUNS=100 of 2 to 4 s, two at a time, SEED=1)
	$(BIN)/python tests/crash --seed $(SEED) --runs $(RUNS)

simulate: SEEDS = 2000
simulate: setup ## a cluster's decisions on simulated nodes, links, clocks and disks by seed (SEEDS=2000, FIRST=0)
	$(BIN)/python tests/cluster --seeds $(SEEDS) --first $(or $(FIRST),0)

cluster-test: setup ## nodes as processes, killed, cut off and restarted, with disks that fail, by seed (RUNS=100 of 10 to 40 s, SEED=1)
	$(BIN)/python tests/cluster/processes --seed $(SEED) --runs $(RUNS)

cluster-crash: RUNS = 200
cluster-crash: setup ## the same, split into sides that go on, and kills besides (RUNS=200 of 30 to 60 s, SEED=1)
	$(BIN)/python tests/cluster/processes --splits --suspect-s 3 --seed $(SEED) --runs $(RUNS)

cluster-soak: setup ## one cluster, split again and again, until its logs must be short and its nodes the same (ACTS=300, an hour)
	$(BIN)/python tests/cluster/processes --splits --suspect-s 3 --seed $(SEED) --acts $(or $(ACTS),300)

soak: setup ## loads and rests in turn at all kinds of listeners: what grows is found (MINUTES=30 or HOURS=8, SEED=1)
	$(BIN)/python tests/soak --minutes $(if $(HOURS),$$(($(HOURS) * 60)),$(MINUTES)) --seed $(SEED)

crash-pipeline: RUNS = 10
crash-pipeline: setup ## kill -9 of broker, jobs and Spark's processes by seed (RUNS=10 of 4 minutes, KILLS=8, SEED=1, FORMAT=delta)
	$(BIN)/python tests/pipeline_crash --seed $(SEED) --runs $(RUNS) --kills $(KILLS) --format $(FORMAT)
