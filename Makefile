# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 8000
CLUSTER := .venv-cluster
JUDGES := .venv-judges

.DEFAULT_GOAL := help
.PHONY: help install demo test suite fast quick nightly check fix hooks coverage docs links test-cluster test-firefox test-judges soak looks bench clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed  ## Install Attend and everything it needs into .venv

demo: $(VENV)/installed  ## Serve three collections on 127.0.0.1:8000 at once, and build them meanwhile (PORT=… for another)
	@$(BIN)/python -m attend_service.demo --data demo-data --port $(PORT)

test: $(VENV)/installed-tests $(VENV)/installed-docs  ## Check the code, build the documentation and run every test
	@$(MAKE) --no-print-directory -j2 check suite

suite: $(VENV)/installed-tests $(VENV)/installed-docs
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(if $(RECORD),--record-seconds)

fast: $(VENV)/installed-tests  ## What to run before each commit: lint, types and the quick tests
	@$(MAKE) --no-print-directory -j2 check quick

quick: $(VENV)/installed-tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --fast

nightly: $(VENV)/installed-tests $(VENV)/installed-docs  ## Every test, properties with all their examples, and a soak
	HYPOTHESIS_PROFILE=nightly $(MAKE) --no-print-directory test
	$(BIN)/python -m tests.soak --minutes 5 --kills 50
	$(BIN)/python -m tests.soak --faults --each 10

check: $(VENV)/installed-tests  ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(VENV)/installed-tests  ## Mend what ruff can mend, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(VENV)/installed-tests $(VENV)/installed-tools  ## Let git run ruff and mypy before each commit
	$(BIN)/pre-commit install

coverage: $(VENV)/installed-tests $(VENV)/installed-docs $(VENV)/installed-tools  ## Print the lines that the tests run, by room
	$(BIN)/python -m pytest -n auto --cov=attend --cov=attend_milvus --cov=attend_service --cov-report=json:coverage.json -q
	$(BIN)/python -m tests.coverage_by_room coverage.json

docs: $(VENV)/installed-docs  ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going --quiet docs docs/_build/html
	@echo "The first page is docs/_build/html/index.html."

links: $(VENV)/installed-docs  ## Check the documentation's links to other sites, over the network
	$(BIN)/python -m sphinx -b linkcheck --quiet docs docs/_build/links

test-cluster: $(VENV)/installed-tests $(CLUSTER)/installed  ## Kill parts of a Milvus cluster of twelve processes
	$(BIN)/python -m pytest -s tests/milvus/cluster_failover.py

test-firefox: $(VENV)/installed-tests  ## Run the tests of the pages in Firefox instead of Chromium
	ATTEND_TEST_BROWSER=firefox $(BIN)/python -m pytest -q -n 2 --dist loadfile tests/service/pages

test-judges: $(JUDGES)/installed  ## Run the suites and clients of other projects over the connectors
	$(JUDGES)/bin/python -m pytest -q -c tests/judges/pytest.ini --rootdir=. --confcutdir=. tests/judges

soak: $(VENV)/installed-tests  ## Ten minutes of load, 200 kills under load, then each operation let fail at each stage
	$(BIN)/python -m tests.soak --minutes 10 --kills 200
	$(BIN)/python -m tests.soak --faults

looks: $(VENV)/installed-tests  ## Draw every view, light and dark, wide and narrow, into looks/, and measure the pages
	$(BIN)/python -m tests.looks

bench: $(VENV)/installed-benchmarks  ## Measure beside the peers (QUICK=1 for two minutes each)
	@for each in build learning serving recommend scale sizing; do \
	  $(BIN)/python benchmarks/$$each.py $(if $(QUICK),--quick) || exit 1; \
	done

clean:  ## Remove what was installed and built here
	rm -rf $(VENV) $(CLUSTER) $(JUDGES) demo-data looks docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps: an installation is repeated only when what it installs has changed.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: requirements.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/installed-tests: tests/requirements.txt requirements-milvus.txt requirements-documents.txt requirements-plots.txt $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

$(VENV)/installed-tools: tests/requirements-tools.txt $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements-tools.txt
	@touch $@

$(VENV)/installed-docs: docs/requirements.txt $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

$(VENV)/installed-benchmarks: benchmarks/requirements.txt $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	@touch $@

# What the code imports is pinned as elsewhere; what that brings is not, for others ask for older.
$(JUDGES)/installed: requirements.txt requirements-connectors.txt tests/judges/requirements.txt
	$(PYTHON) -m venv $(JUDGES)
	sed '/^# What those bring/,$$d' requirements.txt > $(JUDGES)/direct.txt
	$(JUDGES)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r $(JUDGES)/direct.txt -r tests/judges/requirements.txt
	$(JUDGES)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# etcd comes as a package of Debian's, unpacked and not installed.
$(CLUSTER)/installed: tests/requirements-cluster.txt
	$(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements-cluster.txt
	cd $(CLUSTER) && rm -f etcd-server_*.deb && apt-get download etcd-server && \
	  dpkg-deb --extract etcd-server_*.deb etcd
	@touch $@
