# One command for each thing one does here. `make check` is what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
# Small jobs on few cores: more threads than cores make a forward pass many times slower.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
# The tests start hundreds of processes: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo browser tools test quick quick-tests slow-tests thorough campaign screenshots check format lint types docs site dist try-dist try-second bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# A stamp says what an environment holds: nothing is installed twice, and a changed pyproject installs anew.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "audit needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

NATIVE := setup.py audit/values/_native.c $(wildcard audit/values/_*.h)

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt $(NATIVE)
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) -e '.[dev]'
	@touch $@

setup: $(VENV)/.dev  ## the environment for development, in .venv

demo: $(VENV)/.core  ## record the digits through a trained checkpoint, and ask about the mistakes
	@rm -rf out/demo
	$(BIN)/audit run --dataset fixtures/digits/test --model fixtures/digits.pt --pipeline pipelines/digits.py --name demo --store out/demo
	@echo
	$(BIN)/audit sql "FROM wrong_predictions WHERE label = 2" --store out/demo
	@echo
	@worst=$$($(BIN)/audit sql "SELECT index FROM wrong_predictions ORDER BY confidence DESC LIMIT 1" --format csv --store out/demo | tail -1 | tr -d '\r'); \
	echo "$(BIN)/audit trace $$worst --store out/demo"; $(BIN)/audit trace $$worst --store out/demo

# The browser tests want Chromium from the system's packages, best its shell without windows, for which a page is less work.
# CI must have one of them; elsewhere the tests are skipped, visibly.
browser:
	@command -v chromium-headless-shell >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		{ apt-get install -y -qq chromium-headless-shell >/dev/null || apt-get install -y -qq chromium >/dev/null; }; } || \
		command -v chromium >/dev/null || \
		{ echo "no chromium here: the browser tests are skipped"; [ "$$CI" != true ]; }
	@[ -f out/axe-core/axe.min.js ] || { command -v npm >/dev/null && mkdir -p out/axe-core && cd out/axe-core && \
		npm pack --silent axe-core@4.14.0 >/dev/null && tar xzf axe-core-4.14.0.tgz --strip-components=1 package/axe.min.js && rm axe-core-4.14.0.tgz; } || \
		echo "no npm here: the accessibility tests are skipped"

# Packages that exports are for and that do not install beside ours: their tests are skipped, visibly, where they are missing.
tools: $(VENV)/.python  ## DVC, Label Studio's and CVAT's packages in out/tools, for the tests of exports
	$(PYTHON) -m venv out/tools
	out/tools/bin/pip install -q dvc label-studio-sdk datumaro

# One process more than two cores: many tests wait, for a process that starts, a browser or a deadline.
test: $(VENV)/.dev browser  ## every test
	$(BIN)/python -m pytest -q -n 3

QUICK := not ray and not buckets and not browser and not workers and not slow

quick: $(VENV)/.dev  ## format, lint, types, and the tests that start no processes
	@$(MAKE) --no-print-directory -j 2 format lint types quick-tests

quick-tests:
	$(BIN)/python -m pytest -q -n 2 --no-processes --hypothesis-profile quick -m '$(QUICK)'

slow-tests: $(VENV)/.dev  ## measure which tests `make quick` leaves out because they take long
	$(BIN)/python -m pytest -q -n 2 --no-processes --hypothesis-profile quick -m '$(QUICK)' --write-slow-tests

thorough: $(VENV)/.dev browser  ## every test, with 40 times as many examples for each property
	$(BIN)/python -m pytest -q -n 2 --hypothesis-profile thorough

check: $(VENV)/.dev  ## format, lint, types, tests, docs: what CI runs
	@$(MAKE) --no-print-directory -j 2 format lint types test

format: $(VENV)/.dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev  ## write docs/cli.md, docs/python.md, docs/CHECKS.md, the sessions of docs/COOKBOOK.md and docs/TUTORIAL.md, the list of datasets, and the tables of docs/FORMAT.md and docs/FORMAT-values.md from the code
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_python.py
	$(BIN)/python -m audit.checks.documentation > docs/CHECKS.md
	$(BIN)/python docs/make_format.py
	$(BIN)/python docs/make_values.py
	$(BIN)/python docs/make_datasets.py
	$(BIN)/python docs/make_cookbook.py
	$(BIN)/python docs/make_tutorial.py

site: $(VENV)/.dev  ## build the documentation as a site, in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/.dev  ## build the sdist and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

try-dist: dist  ## install the wheel for each Python that is found, and run the sdist's tests
	$(BIN)/python packaging/try_dist.py

try-second: dist  ## as try-dist, for one Python beside this one, where one is found: CI runs it
	$(BIN)/python packaging/try_dist.py --second

bench: $(VENV)/.dev  ## measure; figures go into bench/README.md
	$(BIN)/python bench/floor.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/opening.py
	$(BIN)/python bench/peers.py
	PYTHONPATH=tests/support $(BIN)/python bench/discovery.py
	$(BIN)/python -m bench.queries
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/commits.py
	$(BIN)/python bench/training.py
	$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.diff
	$(BIN)/python -m bench.checks
	$(BIN)/python bench/engines.py
	$(BIN)/python bench/engines.py --no-model --warm
	$(BIN)/python -m bench.driver
	$(BIN)/python -m bench.replay_page

SEED ?= 1
MINUTES ?= 60

campaign: $(VENV)/.dev  ## replay 100,000 stage outputs of random pipelines, then try to break stores: SEED=1 MINUTES=60
	$(BIN)/python -m bench.campaign.replays --seed $(SEED)
	$(BIN)/python -m bench.campaign.planted
	$(BIN)/python -m bench.campaign --seed $(SEED) --minutes $(MINUTES) --write

screenshots: $(VENV)/.dev browser  ## docs/images, made anew
	$(BIN)/python docs/screenshots.py

clean:  ## remove what was built, but not the environment
	rm -rf out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
