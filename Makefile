# make demo   sets everything up and runs the main job
# make test   sets everything up and runs all checks
# make bench  sets everything up, prints every benchmark's ratios (quick), and fails where one is twice as bad as usual
# make docs   builds the documentation site into build/site
# make screenshots  makes the pictures of the page in docs/images
# make setup  only sets up: a virtual environment in .venv with the package and its development tools

PYTHON ?= $(or $(shell command -v python3.11 || command -v python3.12 || command -v python3.13),python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint types imports unit bench docs screenshots fuzz mutants format clean

setup: $(READY)

# The stamp makes a second call quick; a changed dependency makes it install again. -qq: errors only, as pip warns
# of every local link that a machine's settings name and that a package does not have.
$(READY): pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH; install Python 3.11 to 3.13 or call: make PYTHON=/path/to/python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

# Where MovieLens cannot be fetched the built-in synthetic world takes its place.
demo: setup
	rm -rf runs/demo
	@if $(BIN)/hdccf data get ml-100k; then name=ml-100k; users="196 22"; else name=synthetic; users="u0001 u0002"; fi; \
	set -ex; \
	$(BIN)/hdccf data info $$name --core 5; \
	$(BIN)/hdccf train --dataset $$name --out runs/demo; \
	$(BIN)/hdccf evaluate runs/demo; \
	$(BIN)/hdccf recommend runs/demo $$users --k 5

test: lint types imports unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest

# Damaged files and folders must be read or refused in one line: make fuzz MINUTES=5
MINUTES ?= 5
fuzz: setup
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES)

# Random changes to the code that the tests must notice; survivors are listed in results/mutants.md (half an hour).
mutants: setup
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	$(BIN)/python tools/mutants.py --out results/mutants.md

# The pictures in docs/images, taken by the page's browser tests on MovieLens 100K (needs chromium).
screenshots: setup
	$(BIN)/python tools/screenshots.py

docs: setup
	$(BIN)/python tools/docs.py

bench: setup
	$(BIN)/python benchmarks/guard.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
