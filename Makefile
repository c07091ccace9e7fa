# Everything is created in .venv and .cache of this directory, and in the user's cache for the Redis build.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
HOURS ?= 1
MINUTES ?= 10
SEED ?=
ARGS ?=
PORT ?=
BIN := $(VENV)/bin
HEAVY := system or chaos or spark or browser or soak or wheel

export AIRFLOW_HOME := $(CURDIR)/.cache/airflow
export PYSPARK_PYTHON := $(abspath $(VENV))/bin/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help demo up down test unit quick soak chaos check fix bench bench-quick servers setup freeze build ui clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  WORKERS=4 sets the number of test processes, ARGS='-k name' is passed to pytest, PORT=9090 to up."

demo: setup ## Run the demo: Spark, Airflow and workers on this machine (a few minutes)
	@$(BIN)/python -m demo

up: setup ## Start Airflow with the Chasqui page, a Redis server and a worker in the background
	@$(BIN)/python -m demo.up up $(PORT:%=--port %)

down: setup ## Stop everything that `make up` started
	@$(BIN)/python -m demo.up down

test: setup servers ## Run all tests on all servers
	@echo "==> Running all tests"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

unit: setup ## Run the tests that need no server, in seconds
	@$(BIN)/python -m pytest -m unit $(ARGS)

quick: setup servers ## Run the fast tests only
	@echo "==> Running the fast tests"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m 'not ($(HEAVY))' $(ARGS)

soak: setup servers ## Run workers for HOURS (default 1) and check that memory and keys do not grow
	@CHASQUI_SOAK_SECONDS=$$(( $(HOURS) * 3600 )) $(BIN)/python -m pytest -m soak $(ARGS)

chaos: setup servers ## Inject random faults for MINUTES (default 10), with SEED if set, and print a report
	@$(BIN)/python -m tests.chaos.harness.report --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

check: setup ## Check lint, formatting, spelling and types
	@echo "==> Checking lint, formatting, spelling and types"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/codespell
	@$(BIN)/python -m tools.async_to_sync --check
	@$(BIN)/mypy

fix: setup ## Write the generated files, apply the fixes of the linter and the formatter
	@$(BIN)/python -m tools.async_to_sync
	@$(BIN)/python -m tools.parameter_tables
	@cp docs/grafana/alerts.yaml charts/chasqui/files/alerts.yaml
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: setup servers ## Compare this package, its peers and the Redis limit (needs an idle machine, takes long)
	@$(BIN)/python -m benchmarks.run $(ARGS)
	@$(BIN)/python -m benchmarks.report --docs > /dev/null

bench-quick: setup servers ## The same for this package, ChasquiMQ and the Redis limit only
	@$(BIN)/python -m benchmarks.run --quick $(ARGS)

servers: ## Find or build Redis 8.6 and Redis 7 for the tests (once, about three minutes)
	@echo "==> Looking for Redis 8.6"
	@$(PYTHON) tools/redis_server.py || [[ $${CHASQUI_REQUIRE_SERVERS:-0} != 1 ]]
	@echo "==> Looking for Redis 7"
	@$(PYTHON) tools/redis_server.py --which 7 || true

setup: $(VENV)/.ready ## Create .venv with all dependencies

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 …")'
	@[[ -x $(BIN)/python ]] || { echo "==> Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@[[ -x $(BIN)/uv ]] || { echo "==> Installing the installer"; $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt uv; }
	@echo "==> Installing the dependencies (one to three minutes, the first time)"
	@$(BIN)/uv pip install --python $(BIN)/python -c constraints.txt -b constraints.txt -e '.[dev]' 2>&1 \
		| { grep --line-buffered -v '^ [+~-] ' || true; }
	@touch $@

freeze: setup ## Resolve all dependencies again and write constraints.txt
	@tools/freeze

ui: ## Rebuild the front end from ui/ (needs npm; the built files are committed)
	@echo "==> Building the front end"
	@# Not `npm ci`, which requires the lock file to list Rollup for every platform.
	@npm --prefix ui install --no-save --no-audit --no-fund --silent
	@npm --prefix ui run --silent build

build: setup ## Build the wheel and the source archive into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation .

clean: ## Remove everything that make created here (not the Redis build in the user's cache)
	@rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
