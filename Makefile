# Everything from a fresh clone: `make run` for the main job, `make test` for every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_ARGS ?=

.PHONY: run test lint typecheck pytest bench bench-quick clean

run: $(VENV)/.run
	$(BIN)/python examples/heterogeneous_digits.py $(RUN_ARGS)

test: lint typecheck pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .

typecheck: $(VENV)/.test
	# mypy cannot follow the mapping of solvers/ and models/ into the package: check a copy laid out as installed
	rm -rf .cache/typed && mkdir -p .cache/typed && cp -r hierfl examples .cache/typed
	cp -r solvers models .cache/typed/hierfl
	cd .cache/typed && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p hierfl
	cd .cache/typed && MYPYPATH=.:examples $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml examples/*.py

pytest: $(VENV)/.test
	# a file stays in one process, where what it compiled is kept
	$(BIN)/python -m pytest -n auto --dist loadfile

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[examples]"
	@touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test]"
	@touch $@ $(VENV)/.run

bench: $(VENV)/.run
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.projections --readme
	$(BIN)/python -m tests.benchmarks.estimators

bench-quick: $(VENV)/.run
	$(BIN)/python -m tests.benchmarks --quick

clean:
	rm -rf $(VENV) build dist *.egg-info figures .pytest_cache .mypy_cache .ruff_cache .hypothesis
