# 'make demo' and 'make test' set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
JOBS ?= 2
MINUTES ?= 10
.PHONY: help install demo test test-slow soak lint format type bench docs notebook packages clean

help:  ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(VENV)/dev  ## Set up .venv with the dev extras and the suites

# Stamp files, so that a second call has nothing to do. torch comes first and alone: its pinned build
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

demo: $(VENV)/base  ## Train an agent on Catch with the best rule on this machine
	$(BIN)/discorl train catch

# Networks in tests are small: one thread is fastest, and a busy machine slows it down least. JOBS
# processes share the files; with one seed for hashes they all list the tests in the same order.
test: $(VENV)/dev  ## Run the tests
	OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

test-slow: $(VENV)/dev $(VENV)/docs  ## Run the long learning and system tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

soak: $(VENV)/dev  ## Attack runs and files for MINUTES=10, or as long as you like
	$(BIN)/python -m tests.attacks --minutes $(MINUTES)

lint: $(VENV)/dev  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/dev  ## Fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(VENV)/dev  ## Check types
	$(BIN)/pyright

bench: $(VENV)/base  ## Run the benchmarks beside the other implementations
	$(BIN)/python -m benchmarks

docs: $(VENV)/docs  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebook: $(VENV)/docs  ## Run the notebook again and keep its outputs
	OMP_NUM_THREADS=1 $(BIN)/python -c "import nbclient, nbformat; path = 'examples/quickstart.ipynb'; \
	    notebook = nbformat.read(path, 4); nbclient.NotebookClient(notebook, record_timing=False).execute(); \
	    nbformat.write(notebook, path)"

packages: $(VENV)/dev  ## Build the wheel and the source package into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build

clean:  ## Remove what was built
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
