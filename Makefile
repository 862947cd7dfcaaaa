# Needs Python 3.11 or newer with venv, and nothing else: every target makes and uses .venv.
# Another Python: make test PYTHON=python3.13

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=
# The wheel that a ClickHouse server is started from; what else it asks for, the tests do not need.
CLICKHOUSE := chdb-core==26.9.0

BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check lint bench build clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: $(VENV)/.demo  ## publish, retry and dead-letter on a SQLite file, and watch it happen
	$(BIN)/python -m examples.demo $(ARGS)

test: lint  ## lint, then run every test, on servers that the tests start themselves
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

check: lint  ## lint, then run the quick tests that need no server
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not processes" -k "not postgres" $(ARGS)

lint: $(VENV)/.dev  ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

bench: $(VENV)/.dev  ## measure beside the driver alone: ARGS='--long --json FILE --plot FILE.svg'
	$(BIN)/python -m benchmarks $(ARGS)

build: $(VENV)/.dev  ## build the source archive and the wheel
	rm -rf build dist
	$(BIN)/python -m build

clean:  ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# One stamp for each set of extras: running a target again installs nothing.
$(VENV)/.demo $(VENV)/.dev: $(VENV)/.%: setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is no Python 3.11 or newer: name one, as in make $(MAKECMDGOALS) PYTHON=python3.13" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	test $* != dev || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(CLICKHOUSE)
	touch $@
