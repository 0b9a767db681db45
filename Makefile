.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ZOO := .venv-zoo
OLDEST := .venv-oldest

# One torch thread per test worker: more would fight over the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: help venv demo test doctest check lint format types docs gallery zoo oldest reliability release-check clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED)  ## Create .venv with the package and its tools (once)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (some minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e ".[dev]" -c constraints.txt
	@touch $@

demo: venv  ## Fit a density to the red wine data, with a report in demo-output/
	$(BIN)/scorematching fit redwine --out demo-output --overwrite

test: venv  ## Run the tests and the examples in docstrings
	$(PYTEST)

doctest: venv  ## Run the examples in docstrings only
	$(PYTEST) src reproduction benchmarks

check: lint types test  ## Everything a change must pass

lint: venv  ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: venv  ## Fix what can be fixed of style and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: venv  ## Check types
	$(BIN)/mypy

docs: venv  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gallery: venv  ## Draw the pictures of the gallery again
	OMP_NUM_THREADS=1 $(BIN)/python examples/gallery

release-check:  ## Build wheel and sdist, install them in a fresh environment, use them there
	$(PYTHON) tests/release.py

zoo: $(ZOO)/.installed  ## Try third-party models and all of torch's operations (half an hour)
	OMP_NUM_THREADS=1 $(ZOO)/bin/python -m tests.zoo --page docs/supported-models.md
	OMP_NUM_THREADS=1 $(ZOO)/bin/python -m tests.opinfo

oldest: $(OLDEST)/.installed  ## Run the tests with the oldest torch (gigabytes of CUDA libraries)
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 tests

reliability: venv  ## Kill, damage and mistype everything; write the counts (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability \
		--json tests/reliability/counts.json --page docs/reliability.md

$(ZOO)/.installed: pyproject.toml constraints.txt constraints-zoo.txt
	@echo "Installing into $(ZOO) (some minutes the first time) ..."
	@test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	@$(ZOO)/bin/python -m pip install -qq --disable-pip-version-check -e ".[zoo]" \
		-c constraints.txt -c constraints-zoo.txt
	@touch $@

$(OLDEST)/.installed: pyproject.toml constraints.txt constraints-oldest.txt
	@echo "Installing into $(OLDEST) (some minutes the first time) ..."
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@grep -v '^torch==' constraints.txt > $(OLDEST)/constraints.txt
	@$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check -e ".[dev]" \
		-c $(OLDEST)/constraints.txt -c constraints-oldest.txt
	@touch $@

clean:  ## Remove the environment, caches and outputs
	rm -rf $(VENV) $(ZOO) $(OLDEST) build dist site demo-output src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests reproduction benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
