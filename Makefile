# Everything from a fresh clone: `make run` for the main job, `make test` for every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_ARGS ?=

.PHONY: run test lint typecheck pytest bench clean

run: $(VENV)/.run
	$(BIN)/python examples/heterogeneous_digits.py $(RUN_ARGS)

test: lint typecheck pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .

typecheck: $(VENV)/.test
	$(BIN)/mypy hierfl solvers models examples

pytest: $(VENV)/.test
	$(BIN)/python -m pytest

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[examples]"
	@touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e ".[test]"
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) build dist *.egg-info figures .pytest_cache .mypy_cache .ruff_cache .hypothesis
