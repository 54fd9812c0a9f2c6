# Everything from a fresh clone: `make run` for the first minute, `make test` for every check, `make test-fast` while at work, `make test-nightly` for what takes longer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_ARGS ?=
NAME ?=
FULL ?=
# the package laid out as installed: tools that read imports cannot follow the mapping of solvers/ and models/ into it
INSTALLED := .cache/installed
RELEASE := .cache/release
TESTS ?= tests
# these read the source tree itself
SOURCE_TESTS := tests/test_architecture.py tests/test_floor_plan.py tests/test_packaging.py

.PHONY: run reproduce test test-fast test-nightly test-torch lint contracts typecheck pytest conformance installed docs docs-test readme-figures release-check bench bench-quick leagues clean

run: $(VENV)/.run
	@$(BIN)/hierfl demo --no-open --out figures $(RUN_ARGS)

# a table or figure of the papers: make reproduce lists them, NAME=2s-table4 runs one, FULL=1 at the paper's size
reproduce: $(VENV)/.run
	@$(BIN)/python -m examples.reproduce $(NAME) $(if $(FULL),--full) --out figures $(RUN_ARGS)

test: lint contracts typecheck pytest

# under two minutes on two cores: some quick tests of every package, chosen in tests/quick.txt
test-fast: lint contracts
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow" $$(grep -v '^#' tests/quick.txt)

lint: $(VENV)/.test
	$(BIN)/ruff check .

contracts: $(VENV)/.test installed
	cd $(INSTALLED) && $(CURDIR)/$(BIN)/lint-imports --no-logo --config $(CURDIR)/pyproject.toml

typecheck: $(VENV)/.test installed
	cd $(INSTALLED) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p hierfl
	cd $(INSTALLED) && MYPYPATH=.:examples $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml examples/*.py
	cd $(INSTALLED) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p examples.reproduce

installed:
	rm -rf $(INSTALLED) && mkdir -p $(INSTALLED) && cp -r hierfl examples $(INSTALLED)
	cp -r solvers models $(INSTALLED)/hierfl

pytest: $(VENV)/.test
	# a file stays in one process, where what it compiled is kept
	$(BIN)/python -m pytest -n auto --dist loadfile --nightly without

# what `make test` leaves out (tests/nightly.txt), and every solver on every runtime
test-nightly: $(VENV)/.test conformance
	$(BIN)/python -m pytest -n auto --dist loadfile --nightly only

# the layer in PyTorch, whose wheel is gigabytes: in an environment of its own
test-torch:
	@$(PYTHON) -m venv .cache/torch
	@.cache/torch/bin/python -m pip install -qqq --disable-pip-version-check -e ".[torch]" pytest
	.cache/torch/bin/python -m pytest -p no:cacheprovider --noconftest -q tests/needs_torch.py

# every solver on every runtime and every case of hierfl.testing; the suite runs a covering of them
conformance: $(VENV)/.test
	CONFORMANCE=1 $(BIN)/python -m pytest -n auto tests/testing/test_conformance.py

$(VENV)/bin/python:
	@echo "setting up $(VENV), once: a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qqq --disable-pip-version-check --upgrade pip

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	@$(BIN)/python -m pip install -qqq --disable-pip-version-check -e ".[examples,report]"
	@touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	@$(BIN)/python -m pip install -qqq --disable-pip-version-check -e ".[test]"
	@touch $@ $(VENV)/.run

# the site in docs/_build/html; every cell runs, and a warning is an error
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -j auto -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# every cell again, from nothing, and every link within the site
docs-test: $(VENV)/.docs
	rm -rf docs/_build
	$(BIN)/sphinx-build -j auto -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

# the README's pictures are the site's
readme-figures: docs
	cd docs/_build/html/_static/thumbnails && cp tolls.png personal_models.png emission_tax.png $(CURDIR)/examples/figures
	cp docs/_build/html/_static/thumbnails/index.png examples/figures/kinks.png

# wheel and sdist, each in an environment of its own; TESTS against the installed wheel, where the source tree is not to be imported
release-check:
	rm -rf dist $(RELEASE) && mkdir -p $(RELEASE)/apart
	for one in build sdist wheel; do $(PYTHON) -m venv $(RELEASE)/$$one || exit 1; done
	$(RELEASE)/build/bin/python -m pip install -qqq build
	$(RELEASE)/build/bin/python -m build --outdir dist .
	$(RELEASE)/sdist/bin/python -m pip install -qqq "$$(ls $(CURDIR)/dist/*.tar.gz)[examples,report]"
	cd $(RELEASE)/apart && ../sdist/bin/hierfl demo --no-open --out figures
	$(RELEASE)/wheel/bin/python -m pip install -qqq "$$(ls $(CURDIR)/dist/*.whl)[test]"
	cp -r tests examples docs *.md pyproject.toml Makefile $(RELEASE)/apart
	cd $(RELEASE)/apart && ../wheel/bin/python -m pytest -n auto --dist loadfile --nightly without $(TESTS) $(SOURCE_TESTS:%=--ignore=%)

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	@$(BIN)/python -m pip install -qqq --disable-pip-version-check -e ".[docs]"
	@touch $@

bench: $(VENV)/.run
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.projections --docs
	$(BIN)/python -m tests.benchmarks.estimators
	$(BIN)/python -m tests.benchmarks.first_answer
	$(BIN)/python -m tests.benchmarks.untuned
	$(BIN)/python -m tests.benchmarks.growth
	$(BIN)/python -m tests.benchmarks.scale --owners
	$(BIN)/python -m tests.benchmarks.gpu

# methods on implicit functions at equal calls, in about an hour, kept in tests/benchmarks/leagues.json; what is finished is not run again
leagues: $(VENV)/.run
	@$(BIN)/python -m pip install -qqq --disable-pip-version-check -e ".[bench]"
	$(BIN)/python -m tests.benchmarks.leagues --folder .cache/leagues $(RUN_ARGS)

bench-quick: $(VENV)/.run
	$(BIN)/python -m tests.benchmarks --quick

clean:
	rm -rf $(VENV) docs/_build build dist *.egg-info figures .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
