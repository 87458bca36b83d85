# `make help` lists the targets. Paths are relative and tools run as `python -m …`, so a clone in a path with a space works.
PYTHON ?= python3
UV ?= uv
# Twice the cores: tests wait for leases, polls and processes more than they compute. (Six took as long as four.)
JOBS ?= 4
CRASH_SECONDS ?= 600
USERS ?= 10000
KILLS ?= 50
PAYMENTS ?= 200
MESSAGES ?= 10000
POSTGRES ?= debian
# What another server could change: the store, its plans, locks and notices, transactions of callers, kills, settings, its log.
ON_POSTGRES ?= tests/conformance tests/plans tests/postgres tests/transactions tests/crash tests/engine/test_wakeup.py tests/engine/test_transactional.py tests/capture/test_stream.py tests/capture/test_losses.py tests/capture/test_versions.py

VENV := .venv
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
UV_COMPILE := $(UV) pip compile --quiet --universal --no-strip-extras --python-version 3.11 --generate-hashes --custom-compile-command "make lock"
# Names the packages that pip is about to install, quietly, which takes a minute where none of them is cached.
SAY_WHAT = awk -F'==' '/^[A-Za-z0-9]/ { split($$2, version, /[ ;\\]/); list = list ", " $$1 " " version[1]; number++ } \
  END { printf "installing %d packages into $(VENV), $(1):\n  %s …\n", number, substr(list, 3) }' $(2) | fold -s -w 79
FLOORS := .venv-floors
HTTP_TESTS := tests/api/http tests/api/qstash tests/api/admin tests/api/test_receiver.py tests/client tests/daemon/test_http.py \
  tests/destinations/http tests/destinations/test_ssrf_connect.py tests/ingest tests/security
RUNNER ?= pytest
PYTEST := $(PY) -m $(RUNNER) -n $(JOBS) --dist loadgroup
# Tests of shells run on one of the two databases, in turns by commit (tests/support/turns.py); TURN= runs them on both.
TURN ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
export TODOKU_TEST_TURN = $(if $(TESTS),,$(TURN))

.DEFAULT_GOAL := help
.PHONY: help setup setup-runtime up check format test test-slow stranger test-unit test-fast test-postgres test-api test-floors reference fuzz model crash flow-kills capture-kills projection-kills example example-users-chaos example-orders-chaos example-payments-show bench bench-store bench-engine bench-growth bench-idle bench-limits bench-jobs bench-flow bench-http bench-relay bench-projection bench-capture bench-web show-web screenshots system-packages kafka opensearch debezium node-clients helm brokers lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{ printf "  make %-16s %s\n", $$1, $$2 }'

# --- the environment -------------------------------------------------------------------------------------------------
# Each step leaves a stamp in .venv; a stamp newer than its inputs means there is nothing to do.

setup: $(VENV)/.stamp-dev ## make .venv with everything that `check` and `test` need

setup-runtime: $(VENV)/.stamp-runtime ## make .venv with only what `up` needs

$(VENV)/.stamp-venv:
	@$(PYTHON) -c '' 2>/dev/null || { echo "todoku needs Python 3.11 or newer, and '$(PYTHON)' does not run: install it, or name one with make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "todoku needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -c 'import platform; print(platform.python_version())'): name a newer one with make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv), or name another Python with make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@rm -rf $(VENV)
	@echo "making $(VENV) with $$($(PYTHON) -c 'import platform, sys; print("Python", platform.python_version(), "from", sys.executable)') …"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.stamp-runtime: $(VENV)/.stamp-venv requirements/runtime.txt pyproject.toml
	@$(call SAY_WHAT,what todoku needs to run,requirements/runtime.txt)
	@$(PIP_INSTALL) --require-hashes -r requirements/runtime.txt
	@echo "installing todoku itself, from this directory …"
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-runtime requirements/dev.txt
	@$(call SAY_WHAT,what the checks and tests need,requirements/dev.txt)
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

# --- running ---------------------------------------------------------------------------------------------------------

# The demonstration is for the SQLite file that `make up` makes here, never for a database that the caller names.
DEMO := $(if $(TODOKU_APP)$(TODOKU_DATABASE)$(TODOKU_DATABASE_FILE)$(DATABASE_URL)$(wildcard todoku.toml),,--demo)

up: setup-runtime ## start todoku with a demonstration on the embedded default (a SQLite file here)
	@$(PY) -m todoku up --open $(DEMO)

example: setup ## run an example until Ctrl-C: NAME=users (PORT=8330; on SQLite, or where DATABASE_URL says)
	@test -f "examples/$(NAME)/pyproject.toml" || { echo "make example NAME=…: there is $$(cd examples && ls -d */pyproject.toml | cut -d/ -f1 | tr '\n' ' ')" >&2; exit 1; }
	@if [ "$(NAME)" = projections ]; then $(MAKE) --no-print-directory opensearch; fi
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable "examples/$(NAME)"
	@cd "examples/$(NAME)" && ../../$(PY) -m $(NAME)_example

example-users-chaos: setup ## post USERS=10000 while workers are killed every second: is anybody forgotten, or written to twice?
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable examples/users
	@$(PY) -m users_example.chaos --users $(USERS)

example-orders-chaos: setup ## 64 identical orders at once, then KILLS=50 workers killed: does the broker's log agree with the ledger?
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable examples/orders
	@$(PY) -m orders_example.chaos --kills $(KILLS)

example-payments-show: setup ## PAYMENTS=200 that Stripe tells of twice and out of order, workers killed: is anything lost? Embedded, then a queue.
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable examples/payments
	@$(PY) -m payments_example.show --payments $(PAYMENTS)
	@$(PY) -m payments_example.show --payments $(PAYMENTS) --mode queue

# --- checking --------------------------------------------------------------------------------------------------------

check: setup ## lint, format, types, layers
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c 'from importlinter.cli import lint_imports_command as lint; lint()'

format: setup ## write what `check` would ask for
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

test: setup ## every test but the slow ones (or all of TESTS=tests/core), then a table of what was skipped and what would make it run
	$(PYTEST) $(or $(TESTS),-m "not slow")

test-slow: setup ## the slow ones: kills, labs, whole examples, large tables, deep searches; about ten minutes
	$(PYTEST) -m slow

stranger: setup ## `make up` and a part of `make test` in a private directory with a space in its path; as root for nobody, too
	$(PY) -m tests.support.stranger $(TESTS)

# No servers, no processes, no long waits: the core, and the parts of the engine that are tested in memory or on SQLite.
UNIT_TESTS := tests/core tests/engine/http $(addprefix tests/engine/test_,$(addsuffix .py,abreast alerts log started \
  telemetry telemetry_engine telemetry_rules together tracing))
NOT_UNIT := tests/core/test_schedule.py::test_with_a_star_it_fires_whenever_the_clock_matches_and_never_else

test-unit: setup ## under half a minute, in one process: core and engine, without servers, with fewer examples of each property
	$(PY) -m $(RUNNER) -p no:xdist --hypothesis-profile unit -m "not slow and not postgres" $(UNIT_TESTS) --deselect $(NOT_UNIT)

test-fast: setup ## a minute or two: no PostgreSQL, nothing slow
	$(PYTEST) -m "not slow and not postgres"

test-postgres: setup ## the tests that depend on the server, on POSTGRES=debian (Debian's own, default configuration), 16 or 18; SLOW=no
	TODOKU_TEST_POSTGRES_VERSION=$(POSTGRES) $(PYTEST) -m "postgres$(if $(filter no,$(SLOW)), and not slow)" $(ON_POSTGRES)

test-api: setup ## ask the admin API EXAMPLES=200 times per operation what its description allows, and what it does not
	TODOKU_TEST_EXAMPLES=$(or $(EXAMPLES),200) $(PYTEST) tests/api/admin/test_openapi.py

test-floors: setup $(FLOORS)/.stamp ## the HTTP part of the suite on the lowest versions that pyproject.toml allows, in a .venv of its own
	$(FLOORS)/bin/python -m pytest -n $(JOBS) --dist loadgroup $(HTTP_TESTS) --ignore tests/api/admin/test_openapi.py

$(FLOORS)/.stamp: pyproject.toml requirements/dev.txt tests/support/floors.py $(VENV)/.stamp-dev
	@echo "installing the lowest versions …"
	@rm -rf $(FLOORS)
	@$(PYTHON) -m venv $(FLOORS)
	@$(PY) tests/support/floors.py constraints > $(FLOORS)/floors.txt
	@$(PY) tests/support/floors.py tools > $(FLOORS)/tools.txt
	@$(FLOORS)/bin/python -m pip install --quiet --disable-pip-version-check -c $(FLOORS)/floors.txt -r $(FLOORS)/tools.txt
	@$(FLOORS)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c $(FLOORS)/floors.txt --editable ".[postgres,server]"
	@touch $@

model: setup ## search every scope of the protocol's model, the slow ones too
	TODOKU_TEST_DEEP=1 $(PYTEST) tests/model

fuzz: setup ## hostile requests to every route, hostile answers of receivers, for SECONDS=60: 5xx, hangs, lost bodies? SEED= repeats
	$(PY) -m tests.fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

crash: setup ## kill, stop, cut and starve real processes for CRASH_SECONDS=600, and count what was lost or doubled
	CRASH_SECONDS=$(CRASH_SECONDS) $(PY) -m tests.crash
	$(MAKE) flow-kills

capture-kills: setup ## TRANSACTIONS=20000 of a source while workers, daemon and servers are killed KILLS=100 times: lost, doubled, out of order?
	TODOKU_TEST_CAPTURE_TRANSACTIONS=$(or $(TRANSACTIONS),20000) TODOKU_TEST_CAPTURE_KILLS=$(if $(filter command line environment,$(origin KILLS)),$(KILLS),100) \
	  $(PY) -m $(RUNNER) -p no:xdist -s tests/capture/test_kills.py -k once_and_in_order

flow-kills: setup ## RUNS=1000 workflows of random shape while their workers are killed KILLS=300 times, on both databases: doubled, stuck, not undone?
	TODOKU_TEST_FLOWS=$(or $(RUNS),1000) TODOKU_TEST_FLOW_KILLS=$(if $(filter command line environment,$(origin KILLS)),$(KILLS),300) \
	  $(PY) -m $(RUNNER) -p no:xdist -rP tests/crash/test_flow_kills.py

projection-kills: setup opensearch ## DOCUMENTS=5000 change while workers, search server and database are killed KILLS=12 times: lost, doubled?
	TODOKU_TEST_DOCUMENTS=$(or $(DOCUMENTS),5000) TODOKU_TEST_DOCUMENT_KILLS=$(if $(filter command line environment,$(origin KILLS)),$(KILLS),12) \
	  $(PYTEST) tests/projections/test_kills.py

bench: setup ## todoku beside its peers, in turns, into bench/RESULTS.md: ARGS="--quick", "--only pgqueuer,river", "--rows drain,bulk", "--rounds 1"
	$(PY) -m bench.compare $(ARGS)
	$(if $(ARGS),,$(PY) -m bench.compare --postgres 18 --only todoku,graphile,pgqueuer,river --rows drain,publish,latency --rounds 1 --to bench/postgres18)

bench-store: setup ## the store beside a bare SQL loop, one line per bar
	$(PY) -m bench.store

bench-engine: setup ## workers through the public API beside a bare SQL loop, one line per bar
	$(PY) -m bench.engine

bench-growth: setup ## what a message costs at 10,000 to 10,000,000 rows of history and backlog (GROWTH=--quick: up to 100,000)
	$(PY) -m bench.growth $(GROWTH)

bench-idle: setup ## an idle worker beside a bare NOTIFY loop, and what an idle daemon costs (BENCH_POSTGRES=dsn: your server)
	$(PY) -m bench.idle

bench-jobs: setup ## a million jobs: what each costs, the workers' memory; and limits under load, one line per bar
	$(PY) -m bench.jobs
	@if [ -f bench/limits.py ]; then $(PY) -m bench.limits; fi

bench-flow: setup ## workflows of ten steps beside DBOS and Absurd in turns, and what 100,000 waiting runs cost an idle daemon
	$(PY) -m bench.flow $(FLOW)

bench-limits: setup ## a limit of 2 per key over 8 processes: never more, and the other keys stay busy
	$(PY) -m bench.limits

bench-http: setup ## ingest and delivery over HTTP beside an empty endpoint and a bare client, one line per bar
	$(PY) -m bench.http

bench-web: setup ## pages and searches over ten million rows, and what ten open dashboards cost the engine
	$(PY) -m bench.web

bench-relay: setup ## outbox to NATS, RabbitMQ and Kafka through the daemon beside a bare client, one line per bar
	$(PY) -m bench.relay

show-web: setup ## a newcomer's first minute in the browser: find what failed, see the line of code, run it again; clicks and seconds
	$(PY) -m tests.web.first_click

screenshots: setup ## take the pictures of the dashboard again, into docs/images
	$(PY) -m tests.web.screenshots

bench-projection: setup opensearch ## events to OpenSearch through the daemon beside a bare `_bulk` loop, one line per bar
	$(PY) -m bench.projection

bench-capture: setup ## changes of a source into todoku beside a bare pgoutput reader; the source's own commits; lag beside polling
	$(PY) -m bench.capture

system-packages: ## as root on Debian: install what some tests want; elsewhere say what will be skipped
	@sh tests/support/packages.sh pgbouncer rabbitmq-server postgresql redis-server curl prometheus default-jre-headless maven nodejs npm chromium

kafka: ## fetch the jars of a Kafka server for the tests, once, into .cache (needs java and mvn)
	@if ls .cache/kafka/kafka_2.13-*.jar >/dev/null 2>&1; then \
	  echo "kafka: present"; \
	elif command -v mvn >/dev/null 2>&1 && command -v java >/dev/null 2>&1; then \
	  rm -rf .cache/kafka .cache/kafka.part; mkdir -p .cache; \
	  mvn -B -q -f tests/support/kafka.pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$(CURDIR)/.cache/kafka.part" \
	    && mv .cache/kafka.part .cache/kafka && echo "kafka: fetched" \
	    || echo "kafka: could not be fetched; the tests on Kafka will be skipped"; \
	else \
	  echo "kafka: needs java and mvn; the tests on Kafka will be skipped"; \
	fi

opensearch: ## fetch the jars of an OpenSearch server for the tests, once, into .cache (needs java and mvn)
	@if ls .cache/opensearch/opensearch-core-*.jar >/dev/null 2>&1; then \
	  echo "opensearch: present"; \
	elif command -v mvn >/dev/null 2>&1 && command -v java >/dev/null 2>&1; then \
	  rm -rf .cache/opensearch .cache/opensearch.part; mkdir -p .cache; \
	  mvn -B -q -f tests/support/opensearch/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$(CURDIR)/.cache/opensearch.part" \
	    && mv .cache/opensearch.part .cache/opensearch && echo "opensearch: fetched" \
	    || echo "opensearch: could not be fetched; the tests on OpenSearch will be skipped"; \
	else \
	  echo "opensearch: needs java and mvn; the tests on OpenSearch will be skipped"; \
	fi

debezium: ## fetch the jars of Kafka Connect and Debezium for the tests, once, into .cache (needs java and mvn)
	@if ls .cache/debezium/debezium-connector-postgres-*.jar >/dev/null 2>&1; then \
	  echo "debezium: present"; \
	elif command -v mvn >/dev/null 2>&1 && command -v java >/dev/null 2>&1; then \
	  rm -rf .cache/debezium .cache/debezium.part; mkdir -p .cache; \
	  mvn -B -q -f tests/support/debezium/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$(CURDIR)/.cache/debezium.part" \
	    && mv .cache/debezium.part .cache/debezium && echo "debezium: fetched" \
	    || echo "debezium: could not be fetched; the test on Debezium will be skipped"; \
	else \
	  echo "debezium: needs java and mvn; the test on Debezium will be skipped"; \
	fi

node-clients: ## fetch QStash's clients for Node and Cloudflare's workerd, which some tests drive, once, into .cache (needs node and npm)
	@if [ -d .cache/node/node_modules/@upstash/workflow ] && cmp -s tests/support/node/package-lock.json .cache/node/package-lock.json; then \
	  echo "node-clients: present"; \
	elif command -v npm >/dev/null 2>&1 && command -v node >/dev/null 2>&1; then \
	  rm -rf .cache/node .cache/node.part; mkdir -p .cache/node.part; \
	  cp tests/support/node/package.json tests/support/node/package-lock.json .cache/node.part/ \
	    && npm ci --prefix .cache/node.part --no-audit --no-fund --silent \
	    && mv .cache/node.part .cache/node && echo "node-clients: fetched" \
	    || echo "node-clients: could not be fetched; the tests from Node will be skipped"; \
	else \
	  echo "node-clients: needs node and npm; the tests from Node will be skipped"; \
	fi

helm: ## build Helm, which some tests of deploy/ ask, once, into .cache/bin (needs go)
	@if command -v helm >/dev/null 2>&1 || [ -x .cache/bin/helm ]; then \
	  echo "helm: present"; \
	elif command -v go >/dev/null 2>&1; then \
	  mkdir -p .cache/bin && GOBIN="$(CURDIR)/.cache/bin" GOFLAGS=-modcacherw go install helm.sh/helm/v3/cmd/helm@v3.22.0 \
	    && echo "helm: built" || echo "helm: could not be built; the tests of the chart will be skipped"; \
	else \
	  echo "helm: needs go; the tests of the chart will be skipped"; \
	fi

brokers: setup kafka ## 10,000 messages through each broker while it and the relay are killed in turn
	TODOKU_TEST_BROKER_MESSAGES=$(MESSAGES) $(PYTEST) tests/destinations

# --- upkeep ----------------------------------------------------------------------------------------------------------

reference: setup ## write docs/reference again, from the signatures and docstrings of the code
	$(PY) -m tests.support.reference

lock: ## pin the requirements again, with hashes (needs uv: pip install uv)
	@command -v "$(UV)" >/dev/null 2>&1 || { echo "make lock needs uv: pip install uv, or name one with make lock UV=/path/to/uv" >&2; exit 1; }
	$(UV_COMPILE) --upgrade --extra postgres --extra server -o requirements/runtime.txt pyproject.toml requirements/runtime.in
	$(UV_COMPILE) --upgrade --extra postgres --extra server --extra oidc --extra otel --extra encryption --extra jsonschema --extra sqlalchemy --extra django --extra flask --extra kafka --extra rabbitmq --extra nats --extra redis --extra sqs --extra pubsub --extra opensearch --extra elasticsearch --extra aws --extra gcp --extra vault --extra sentry -c requirements/runtime.txt -o requirements/dev.txt pyproject.toml requirements/dev.in

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) $(FLOORS) bench/.envs .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .fuzz .coverage htmlcov build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
