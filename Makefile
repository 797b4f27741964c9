# Two commands on a fresh machine: `make run` and `make test`. Both make the environment they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks examples
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test lint bench browser clean

run: $(VENV)/ready
	$(BIN)/holonom reproduce fig1 --scale ci
	$(BIN)/holonom report

test: $(VENV)/dev-ready lint
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/dev-ready
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

bench: $(VENV)/bench-ready
	$(BIN)/python -m benchmarks.run --out results/bench

# The labelling page is tested in a real browser where there is one; without, that test says so and is skipped.
browser:
	command -v chromium || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)

# torch first and by itself, so that nothing else can choose another build of it.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[experiments]'
	touch $@

$(VENV)/dev-ready: $(VENV)/ready
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/bench-ready: $(VENV)/ready
	$(PIP) -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) results .pytest_cache .mypy_cache .ruff_cache
