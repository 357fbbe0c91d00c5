# The habits of this repository. Needs Python 3.10 or newer and make; the rest comes into .venv.

PYTHON ?= python3
# for pytest: make test ARGS="-k framing -x"; ARGS="-n 0 --pdb" for one process
ARGS ?=
# for make fuzz
SECONDS ?= 600
# for make test-often
RUNS ?= 20
# two processes, each file as a whole in one of them; one that dies is a failure, and is not made again: its test would end the next one too
TWO := -n 2 --dist loadfile --max-worker-restart 0
BIN := .venv/bin
# Containers often set it, and every process would compile torch's thousands of files again: 2 s each
unexport PYTHONDONTWRITEBYTECODE
STAMP := .venv/.complete

.DEFAULT_GOAL := help
.PHONY: help setup demo test answers test-integration test-all test-often test-cuda test-versions check check-all lint bench fixtures conformance dist docs reference screenshots viewer fuzz fuzz-scripts faults house clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

setup: $(STAMP)  ## .venv with the three distributions and all development tools

$(STAMP): pyproject.toml schema/pyproject.toml recorder/pyproject.toml analyzer/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 10) and sys.exit("Python 3.10 or newer is needed: make PYTHON=...")'
	@# kept when it works: a changed pyproject.toml must not pull it away from under a running test
	@$(BIN)/python -c '' 2>/dev/null && $(BIN)/uv --version >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear .venv && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check uv; }
	UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv sync --quiet --all-packages --all-extras --inexact --no-python-downloads --python $(BIN)/python
	@touch $@

demo: $(STAMP)  ## record, analyze and export a small Llama, in three processes
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## the fast tests: up to four minutes on two cores
	$(BIN)/python -m pytest $(TWO) $(ARGS)

test-integration: $(STAMP)  ## the integration and chaos tests that CI runs; properties with more examples
	$(BIN)/python -m pytest $(TWO) -m "(hypothesis or integration) and not chaos and not slow" --hypothesis-profile=ci $(ARGS)
	@# one process: they count memory, threads and files of the machine
	$(BIN)/python -m pytest -m "chaos and not slow" $(ARGS)

test-all: $(STAMP)  ## every test, the slow ones too; properties with new examples each time
	$(BIN)/python -m pytest $(TWO) -m "not chaos" --hypothesis-profile=thorough $(ARGS)
	$(BIN)/python -m pytest -m chaos $(ARGS)

test-often: $(STAMP)  ## the fast tests RUNS=20 times in random order, every other time beside a busy process
	$(BIN)/python -m tests.often --runs $(RUNS) $(ARGS)

answers: $(STAMP)  ## every answer against tests/answers/golden; ARGS=--update writes it
	$(BIN)/python -m tests.answers $(ARGS)

test-cuda: $(STAMP)  ## what needs a CUDA device: recording from it, replay, export
	$(BIN)/python -m pytest -m cuda $(ARGS)

test-versions: $(STAMP)  ## the oldest and newest of each promised version; writes docs/versions.md
	$(BIN)/python -m tests.versions $(ARGS)

lint: $(STAMP)  ## formatting, rules, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

check: lint docs test dist test-integration  ## what CI checks

check-all: lint docs dist test-all  ## what CI checks, and the slow tests that rarely fail

bench: $(STAMP)  ## what calltape costs: measures, and writes docs/costs.md and the costs in README.md
	$(BIN)/python -m benchmarks --save

fixtures: $(STAMP)  ## add what is missing to fixtures/
	$(BIN)/python fixtures/generate.py

conformance: $(STAMP)  ## hold our own reader to fixtures/
	$(BIN)/python fixtures/run_conformance.py $(ARGS) -- $(BIN)/python fixtures/calltape_reader.py

docs: $(STAMP)  ## the site, in build/docs; each warning is an error
	rm -rf build/docs build/doctrees
	$(BIN)/sphinx-build -W --keep-going -q -c docs -d build/doctrees . build/docs
	@echo "build/docs/index.html"

reference: $(STAMP)  ## docs/reference, from the help texts, signatures and docstrings
	$(BIN)/python -m docs.extensions.reference

screenshots: $(STAMP)  ## the pictures of the pages, made with Chromium
	$(BIN)/python -m tests.docs.screenshots

viewer: $(STAMP)  ## the page of viewer/ in one file, which the wheel of the analyzer has
	$(BIN)/python viewer/bundle.py

dist: $(STAMP)  ## sdists and wheels in dist/, checked, and the first pages followed with them in an empty environment
	rm -rf dist
	$(BIN)/uv build --quiet --all-packages --out-dir dist
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/uv venv --quiet --clear --no-python-downloads --python $(BIN)/python dist/environment
	$(BIN)/uv pip install --quiet --python dist/environment/bin/python dist/*.whl 'calltape[onnx,table]'
	$(BIN)/python -m tests.tour dist/environment/bin/python

fuzz: $(STAMP)  ## mutants of tapes for SECONDS=600; more with ARGS="--jobs 2 --seed 7"
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

fuzz-scripts: $(STAMP)  ## run what bundle and minimise write for forged tapes, in a sandbox, for SECONDS=600
	$(BIN)/python -m tests.fuzz scripts --seconds $(SECONDS) $(ARGS)

faults: $(STAMP)  ## plant deliberate faults, and see whether the tests find them: an hour; ARGS="--only NAME" tries one
	$(BIN)/python -m tests.faults $(ARGS)

house: $(STAMP)  ## what the code is made of: lines, files, functions with one use, private names in tests
	$(BIN)/python -m tests.house

clean:  ## remove .venv and caches
	rm -rf build .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache runs
