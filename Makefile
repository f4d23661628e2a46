# make demo   trains a small transformer, sick and then treated, and shows the check-up
# make test   lint, types, tests
# make docs   builds the documentation into build/docs
# All need python3 (>= 3.10) and make only: they build .venv and install into it, the demo no more than the package needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SMALL := $(VENV)/.installed-package
SETTINGS := pyproject.toml setup.py constraints.txt .ci/install.py $(wildcard src/gradmedic/stats/*.c src/gradmedic/stats/*.h)
INSTALL := $(BIN)/python .ci/install.py

# What has been compiled once is kept, whatever the environment says: hundreds of processes import the same modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types check docs reference bench clean

demo: $(SMALL)
	$(BIN)/gradmedic demo

# mypy has work for one core, and tests wait now and then: together.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 types check

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Pages are also opened in a real Chromium, where one is installed (GRADMEDIC_CHROMIUM names another one).
BROWSER := $(or $(GRADMEDIC_CHROMIUM),$(shell command -v chromium || command -v chromium-browser || command -v google-chrome))

# One thread each: threads of several processes that wait for each other on few cores slow everything down. Three processes
# on two cores: a third of the time the tests of commands, ranks and pages wait for others.
check: $(STAMP)
	$(if $(BROWSER),,@echo "no Chromium found: tests/browser is left out")
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(if $(BROWSER),,--ignore=tests/browser)

docs: reference
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs build/docs
	@echo "build/docs/index.html"

# Pages that are written from the code.
reference: $(STAMP)
	$(BIN)/python docs/make_reference.py

bench: $(STAMP)
	$(BIN)/python benchmarks/stats.py
	$(BIN)/python benchmarks/overhead.py

$(SMALL): $(SETTINGS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint constraints.txt --editable .
	touch $(SMALL)

# Triton is put aside, for the tests of its kernels alone: torch imports it wherever it finds it.
$(STAMP): $(SETTINGS)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint constraints.txt --editable ".[test]"
	-$(INSTALL) --no-deps --upgrade --target $(VENV)/triton "triton>=3.2"
	touch $(SMALL) $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info
