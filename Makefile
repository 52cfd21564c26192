# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

DATA ?= physionet2012

.PHONY: demo test check wheel slow bench timeseries clean
.DEFAULT_GOAL := test

# The stamp is newer than pyproject.toml once the environment holds what it asks for.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "torchcram needs Python 3.11 or newer; try 'make PYTHON=python3.12'"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torchcram and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/torchcram demo

test: check wheel
	$(BIN)/python -m pytest -n 2

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The wheel must install and import by itself, not only from the source tree.
wheel: $(READY)
	$(BIN)/python tests/check_wheel.py

slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m slow

bench: $(READY)
	$(BIN)/torchcram bench cpu --json results/bench-cpu.json

# PhysioNet 2012 on two CPU cores: one split, a small setting; DATA is the folder with its files.
timeseries: $(READY)
	$(BIN)/torchcram timeseries p12 $(DATA) --out runs/p12 --splits 1 --set epochs=16 --set patience=6 --set acquire=0.1 --set ramp=0.1 --set replicate=0.5 --set interval=2

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
