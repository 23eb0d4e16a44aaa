# make train: from a fresh checkout to a trained model.   make test: the packages that only tests need, then the tests.
# make test-lab: the lab's pages in a browser (Chromium).
# make faults: every kill, damage, full disk and generated input of docs/reliability.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One stamp per set of packages: training with the lab, and everything that the checks need.
TRAIN  := $(VENV)/.ready-train
DEV    := $(VENV)/.ready-dev
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Three test processes on two cores, each with one torch thread (tests/conftest.py): many tests wait for processes that
# they start. Idle ones take over waiting tests.
PARALLEL = -n $$($(BIN)/python -c 'import os; print(min(8, 3 * os.cpu_count() // 2))') --dist worksteal

.PHONY: install train test test-lab faults check clean

install: $(TRAIN)

$(TRAIN): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -e ".[lab]"
	touch $(TRAIN)

$(DEV): $(TRAIN)
	$(PIP) -e ".[dev]"
	touch $(DEV)

train: $(TRAIN)
	$(BIN)/grpo train

test: $(DEV)
	$(BIN)/python -m pytest $(PARALLEL)

test-lab: $(DEV)
	$(BIN)/python scripts/vendor.py
	$(BIN)/python -m pytest -m browser $(PARALLEL) tests/lab

faults: $(DEV)
	GRPO_FAULTS=all $(BIN)/python -m pytest $(PARALLEL) tests/training/faults tests/distributed/test_launched_runs.py tests/fuzz

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
