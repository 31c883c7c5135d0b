# Everything starts from `make help`. Only python3 (3.11 or newer, with venv), make and git are needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Parallel test processes: for the quick suites, and for those that start processes of their own and often wait for
# them. The second get one test after the other, in the order in which tests/conftest.py puts them.
TEST_PROCESSES ?= 2
HEAVY_PROCESSES ?= 3
# More arguments for pytest, for example PYTEST_ARGS='-k seal -x'.
PYTEST_ARGS ?=
# More arguments for the demo, for example DEMO_ARGS='--set config.steps=100'.
DEMO_ARGS ?=

QUICK_TESTS := $(wildcard tests/architecture tests/unit tests/contract tests/golden)
HEAVY_TESTS := $(wildcard tests/integration tests/e2e tests/docs)

# pip would compile 18,000 files one after the other; one import makes the bytecode of the third that is used.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
FIRST := 2>/dev/null TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -W ignore -c

# Under this variable there would be no bytecode, and every start of a worker would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONHOME
unexport PYTHONPATH

.DEFAULT_GOAL := help
.PHONY: setup setup-all demo test test-quick test-heavy check format bench docs clean help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp-setup ## make .venv with the pinned dependencies (again only when they change)

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) was not found. Install Python 3.11 or newer, or say which: make setup PYTHON=python3.12" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), and 3.11 or newer is needed." >&2; \
	  echo "Say which to use: make setup PYTHON=python3.12" >&2; exit 3; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-setup: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the pinned dependencies into $(VENV): about a minute, 1.6 GB"
	$(PIP_INSTALL) -e '.[dev]'
	@$(FIRST) 'import torch' || true
	@touch $@

# It does all that .stamp-setup does: in one go, pip looks for what fits together once.
$(VENV)/.stamp-trainers: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the pinned dependencies, Keras, TensorFlow, JAX, transformers and Lightning into $(VENV): 4 GB"
	$(PIP_INSTALL) -e '.[dev,trainers]'
	@# It wants the package tensorflow, and tensorflow-cpu is the same under another name.
	$(PIP_INSTALL) --no-deps tf_keras
	@$(FIRST) 'import pytorch_lightning, transformers.trainer' & $(FIRST) 'import tensorflow, tf_keras' & wait
	@touch $(VENV)/.stamp-setup $@

setup-all: $(VENV)/.stamp-trainers ## the same with the trainers that the tests drive

$(VENV)/.stamp-docs: $(VENV)/.stamp-setup
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@

demo: setup ## train a byte-level GPT with two workers on the standard library's own source (2 minutes)
	$(BIN)/gscalar run recipes/bytes_lm $(DEMO_ARGS)

test: setup-all ## run every test
	scripts/system-packages
	$(MAKE) --no-print-directory test-quick test-heavy

test-quick: setup-all ## run the tests that start no training: architecture, unit, contract
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(QUICK_TESTS) $(PYTEST_ARGS)

test-heavy: setup-all ## run the tests that start processes: integration, e2e, the code blocks of the docs
	$(BIN)/python -m pytest -n $(HEAVY_PROCESSES) --maxschedchunk 1 -m 'not long' $(HEAVY_TESTS) $(PYTEST_ARGS)

check: setup-all ## lint, format, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## write what `make check` would ask of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup-all ## run every benchmark and list the figures that do not hold
	$(BIN)/python scripts/bench
	$(BIN)/python -m pytest -m long $(HEAVY_TESTS)

docs: $(VENV)/.stamp-docs ## build the documentation into site/
	$(BIN)/python scripts/gen-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove what builds and tests leave; .venv stays
	rm -rf site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
	find src tests recipes benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
