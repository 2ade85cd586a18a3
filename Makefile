# make demo: everything from nothing to the result table. Needs Python 3.11 and git; Docker is used if it
# is there or can be installed.
SHELL := /bin/bash
PYTHON ?= python3.11
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_ARGS ?=
BENCH_ARGS ?=

# OpenMP threads that spin cost a factor of ten on shared cores.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup engine sandbox-image demo serve test test-sandbox lint clean
help:
	@echo "make demo              set up, then run the whole recipe small (CPU, minutes)"
	@echo "make serve             Prefect and MLflow with their pages, and the deployments"
	@echo "make test              all tests       make test-slow-AREA   the slow ones of rl, tasks, sandbox or flows"
	@echo "make test-sandbox      try to break the sandbox at every level that this machine has; says what held"
	@echo "make lint              ruff, mypy, import contracts"
	@echo "make bench-NAME        a benchmark     make setup            environment only"

setup: $(READY)

# torch comes with its dependencies; all else is pinned and comes without, so that nothing replaces a pin and
# torchvision, torchaudio and torchcodec, which break beside a CPU torch, stay out.
$(READY): requirements/cpu.txt pyproject.toml
	@start=$$(date +%s); set -e; \
	echo "setup: environment in $(VENV)"; \
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install -q --upgrade pip setuptools==$$(sed -n 's/^setuptools==//p' requirements/cpu.txt); \
	$(BIN)/python -m pip install -q "$(TORCH)"; \
	$(BIN)/python -m pip install -q --no-deps -r requirements/cpu.txt; \
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .; \
	touch $(READY); \
	echo "setup: environment ready in $$(( $$(date +%s) - start )) s"

engine:
	@sh sandbox/engine.sh

sandbox-image: setup engine
	@start=$$(date +%s); if $(BIN)/python -m sandbox image; then \
	echo "setup: sandbox image ready in $$(( $$(date +%s) - start )) s"; \
	else echo "setup: no sandbox image; tool calls fall back to process isolation where there is no engine"; fi

demo: sandbox-image
	@start=$$(date +%s); $(BIN)/rstar2 run --profile demo $(DEMO_ARGS); code=$$?; \
	echo "demo: the flow took $$(( $$(date +%s) - start )) s"; exit $$code

serve: sandbox-image
	@exec $(BIN)/rstar2 serve

test: sandbox-image
	$(BIN)/python -m pytest --ignore=tests/sandbox
	$(BIN)/python -m pytest -m "not slow" tests/sandbox

test-sandbox: sandbox-image
	$(BIN)/python -m pytest -q -m "" tests/sandbox/test_selfcheck.py tests/sandbox/test_selfcheck_parts.py --selfcheck-table

test-slow-%: sandbox-image
	$(BIN)/python -m pytest -m slow tests/$*

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-%: sandbox-image
	$(BIN)/python -m benchmarks.$(subst -,_,$*) $(BENCH_ARGS)

clean:
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
