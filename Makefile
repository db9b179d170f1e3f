# 'make demo' and 'make test' set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lint format type bench docs clean

help:  ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(VENV)/dev  ## Set up .venv with the dev extras and the suites

# Stamps, so that a second call has nothing to do. torch comes first and alone: its pinned build
# then satisfies the package's range, and nothing newer is pulled in.
$(VENV)/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/dev: $(VENV)/base
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,envs]'
	touch $@

$(VENV)/docs: $(VENV)/base
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

demo: $(VENV)/base  ## Train Catch with the best rule on this machine
	$(BIN)/discorl train catch

test: $(VENV)/dev  ## Run the tests
	$(BIN)/python -m pytest

test-slow: $(VENV)/dev $(VENV)/docs  ## Run the long learning and system tests
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/dev  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/dev  ## Mend style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(VENV)/dev  ## Check types
	$(BIN)/pyright

bench: $(VENV)/base  ## Run the benchmarks beside the other implementations
	$(BIN)/python -m benchmarks

docs: $(VENV)/docs  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## Remove what the build made
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
