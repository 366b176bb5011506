# Every target sets up .venv by itself when it is missing or older than what it is made from.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := -m pip install --quiet --quiet --disable-pip-version-check
OLDEST := python3.11
CONSTRAINTS ?= constraints.txt constraints-oldest.txt

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1  /p' $(MAKEFILE_LIST)

demo: $(READY)  ## train a small convolutional DKM on handwritten digits (one to two minutes)
	$(BIN)/python examples/digits.py

test: $(READY) browser  ## run all tests; GRAMIAN_FIXTURES=DIR takes other parity fixtures
	$(BIN)/pytest

check: $(READY)  ## formatting, lint, types, import order, then all tests with coverage
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test PYTEST_ADDOPTS="--cov --cov-report=term:skip-covered --cov-fail-under=95"

docs: $(READY)  ## build the site into docs/_build/html, with its tutorials run; warnings are errors
	$(BIN)/python $(PIP) -c constraints.txt -e '.[docs]'
	$(BIN)/sphinx-build -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

test-oldest: .venv-oldest/.ready browser  ## all tests on the oldest dependencies that pyproject.toml allows
	.venv-oldest/bin/pytest -W default

release: $(READY)  ## sdist and wheel, twice; tried in empty environments; licences; then dist/
	$(BIN)/python $(PIP) -c constraints.txt -e '.[release]'
	$(BIN)/python -m tools.release --constraints $(CONSTRAINTS)

test-gpu: $(READY)  ## on a machine with a GPU: parity there, precisions, a resumed run, two processes
	GRAMIAN_TEST_DEVICE=cuda $(BIN)/pytest -n0 tests/parity tests/test_cuda.py

test-slurm: $(READY)  ## a table as jobs on a real Slurm of one node, from Debian's packages (root)
	command -v slurmctld >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	apt-get install -qq -y --no-install-recommends slurm-wlm munge; } >/dev/null
	GRAMIAN_SLURM=1 $(BIN)/pytest -n0 -s tests/slurm

mutants: $(READY)  ## single faults in the source: do the nearest tests notice? MUTANTS="--only nn --count 40"
	$(BIN)/python -m tools.mutants $(MUTANTS)

clean:  ## remove .venv and everything that tools have left behind
	rm -rf .venv .venv-oldest docs/_build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage* dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

browser:  # for tests of pages, which are skipped without one; BROWSER=no installs none
	@if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null \
	&& [ "$(BROWSER)" != no ] && [ "$$(id -u)" = 0 ]; then \
	echo "installing Debian's chromium, to test pages in a browser (make test BROWSER=no: without)"; \
	{ timeout 600 apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install \
	-qq -y --no-install-recommends chromium; } >/dev/null 2>&1 || echo "not installed: skipping that test"; fi

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python $(PIP) -c constraints.txt -e '.[dev]'
	touch $@

# Old packages warn of newer ones below them, so there a warning is no error. FastAPI's old test
# client wants httpx.
.venv-oldest/.ready: pyproject.toml constraints-oldest.txt
	$(OLDEST) -m venv --clear .venv-oldest
	.venv-oldest/bin/python $(PIP) -c constraints-oldest.txt -e '.[test]' httpx
	touch $@

export PYTEST_ADDOPTS
.PHONY: help demo docs release test test-oldest test-gpu test-slurm mutants check clean browser
.DEFAULT_GOAL := help
