# Two commands on a fresh machine: `make run` and `make test`. Both make the environment they need.
PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
KERNELS := .venv-kernels
BIN := $(VENV)/bin
CODE := src tests benchmarks examples docs/conf.py docs/_extensions
PIP := -m pip install --quiet --disable-pip-version-check
INSTALL := $(BIN)/python $(PIP) -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n auto
CUDA := tests/contract/test_cuda*.py tests/contract/test_kernels.py tests/contract/test_multirate_cuda.py \
	tests/contract/test_multirate_captured.py tests/contract/test_compiled_memory.py \
	tests/unit/test_graphs.py tests/unit/test_landscape_fused.py

.PHONY: run test test-browser test-cuda test-distributed test-docs test-integrations test-kernels test-kill test-long test-oldest test-studies
.PHONY: lint bench browser clean dist docs play

# The playground: a page on which a network learns a plane.
play: $(VENV)/playground-ready
	$(BIN)/holonom play

# What the papers' methods do that others cannot, and a page that shows it.
run: $(VENV)/ready
	@$(BIN)/holonom reproduce headline --scale ci --overwrite
	@$(BIN)/holonom report
	@echo
	@echo 'Open that page in a browser. Then try'
	@echo '  make play                                              change everything while a network learns'
	@echo '  $(BIN)/python examples/orthogonal_hidden_layers.py  constraints in a loop of your own'
	@echo '  $(BIN)/holonom reproduce fig1 --scale ci            one figure of the paper, its claims and verdicts'

# The default tests, at most six minutes on two cores. Slow kinds of tests have one representative case here.
# The other targets run what is left out, by marker; pyproject.toml says what each marker means.
# They keep a file in one worker, because its tests share processes or a browser.
test: $(VENV)/dev-ready lint
	$(PYTEST) --dist worksteal

test-distributed test-kill test-long test-studies: test-%: $(VENV)/dev-ready
	$(PYTEST) --dist loadfile -m $*

test-docs: $(VENV)/dev-ready $(VENV)/docs-ready
	$(PYTEST) --dist loadfile -m docs

test-browser: $(VENV)/dev-ready $(VENV)/browser-ready browser
	$(PYTEST) --dist loadfile -m browser

test-integrations: $(VENV)/dev-ready $(VENV)/integrations-ready
	$(PYTEST) --dist loadfile -m integrations

# The GPU's kernels on a CPU: run by Triton's interpreter, and compiled. An environment of its own: torch.compile would find Triton there.
test-kernels: $(KERNELS)/ready
	$(KERNELS)/bin/python -m pytest tests/contract/test_kernels.py

# All tests that need a GPU. They compile about a thousand kernels, so that cores count more than the GPU.
test-cuda: $(VENV)/dev-ready
	$(PYTEST) --dist worksteal $(CUDA)

# Part of the default tests with the oldest supported torch. By hand: its environment downloads gigabytes.
test-oldest: $(OLDEST)/ready
	$(OLDEST)/bin/python -m pytest -n auto --dist worksteal tests/unit/test_letters.py tests/unit/test_oracle.py \
		tests/contract/test_edits.py tests/contract/test_gradients.py tests/contract/test_resume.py \
		tests/contract/test_schedules.py tests/law/test_linear_map.py tests/law/test_sgd.py

lint: $(VENV)/dev-ready
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

# The documentation: docs/_build/html/index.html. Its pages run the code they show, in about a minute.
docs: $(VENV)/docs-ready
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo 'open docs/_build/html/index.html'

bench: $(VENV)/bench-ready
	$(BIN)/python -m benchmarks.run --out results/bench

# The wheel and the sdist: built, looked into, and installed without extras in an environment of its own.
dist: $(VENV)/dist-ready
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tests/check_dist.py dist

browser:
	command -v chromium || command -v chromium-browser || command -v google-chrome \
		|| (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)

# torch is installed first and alone, so that no other requirement chooses its build.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e '.[experiments]'
	touch $@

# bench-, browser-, dev-, dist-, docs-, integrations- and playground-ready: one extra of pyproject.toml each.
$(VENV)/%-ready: $(VENV)/ready
	$(INSTALL) -e '.[$*]'
	touch $@

$(KERNELS)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(KERNELS)
	$(KERNELS)/bin/python $(PIP) -c constraints.txt torch
	$(KERNELS)/bin/python $(PIP) -e . pytest triton
	touch $@

# torch 2.6 has wheels for Python 3.10 to 3.13. Some of these tests use scipy.
$(OLDEST)/ready: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python $(PIP) 'torch==2.6.*'
	$(OLDEST)/bin/python $(PIP) -e . pytest pytest-xdist scipy
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(KERNELS) docs/_build results .pytest_cache .mypy_cache .ruff_cache
