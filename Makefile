# Everything a newcomer needs: `make demo` and `make test`. Environments are made on demand and kept.
VENV   ?= .venv
PYTHON ?= $(shell scripts/find_python 3.11)
RUN     = $(VENV)/bin/python
PYTEST  = $(RUN) -m pytest
WORKERS ?= 2
# What must hold on every supported JAX: all but the demo, the examples and the tools around them.
CORE    = tests --ignore=tests/cli --ignore=tests/test_readme.py --ignore=tests/test_layers.py -m "not slow"

.DEFAULT_GOAL := help
.PHONY: help install demo test explore test-slow test-newest test-lowest bench bench-quick bench-peers lint format types clean

help:
	@echo "make demo         train a convnet on 4 replicas, with a report in demo_report/ (under 3 minutes)"
	@echo "make test         the test suite (but for what make test-slow runs)"
	@echo "make test-slow    the tests that take long: 50 eager steps, 50 steps on every number of devices"
	@echo "make explore      generated tests with examples that were not tried before"
	@echo "make install      $(VENV) with everything a developer needs"
	@echo "make bench        all benchmarks and their report (half an hour); make bench-quick: some (3 minutes)"
	@echo "make bench-peers  TensorFlow and PyTorch, for the benchmarks only, in environments of their own"
	@echo "make lint         lint, format and type checks"
	@echo "make test-newest  the core of the suite on the newest supported JAX (Python 3.12 or 3.13)"
	@echo "make test-lowest  the core of the suite on the lowest supported JAX"

# One stamp per set of extras: a second `make` installs nothing unless pyproject.toml changed.
$(VENV)/.installed-%: pyproject.toml
	@echo "installing mirrored[$*] into $(VENV) (minutes the first time)"
	@scripts/install $(VENV) "$(PYTHON)" $*
	@touch $@

.PRECIOUS: $(VENV)/.installed-%

install: $(VENV)/.installed-dev

demo: $(VENV)/.installed-demo
	$(VENV)/bin/mirrored demo

test: $(VENV)/.installed-test
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations 15 -m "not slow and not chaos"

explore: $(VENV)/.installed-test
	$(PYTEST) --hypothesis-profile=explore $$(grep -rl "^from hypothesis" tests/*/)

test-slow: $(VENV)/.installed-test
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations 15 -m "slow or chaos"

bench: $(VENV)/.installed-test
	$(RUN) benchmarks/run.py

bench-quick: $(VENV)/.installed-test
	$(RUN) benchmarks/run.py --quick

# Contenders in environments of their own; without them the benchmarks say so and go on.
bench-peers: .venv-tensorflow/.installed .venv-torch/.installed

.venv-tensorflow/.installed:
	$(PYTHON) -m venv .venv-tensorflow
	.venv-tensorflow/bin/python -m pip install --quiet tensorflow-cpu==2.21.0 || \
	  .venv-tensorflow/bin/python -m pip install --quiet tensorflow==2.21.0
	@touch $@

# The CPU build where there is one to be had: the default one brings gigabytes of CUDA.
.venv-torch/.installed:
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet numpy torch==2.13.0+cpu || \
	  .venv-torch/bin/python -m pip install --quiet numpy torch==2.13.0+cpu \
	    --extra-index-url https://download.pytorch.org/whl/cpu || \
	  .venv-torch/bin/python -m pip install --quiet numpy torch==2.13.0
	@touch $@

lint: $(VENV)/.installed-lint
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m codespell_lib src tests docs README.md
	$(RUN) -m mypy

format: $(VENV)/.installed-lint
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

# Other ends of the supported range, each in an environment of its own.
.venv-newest/.installed: pyproject.toml
	@echo "installing the newest supported JAX into .venv-newest"
	@scripts/install .venv-newest "$$(scripts/find_python 3.12 --anywhere)" test
	@touch $@

.venv-lowest/.installed: pyproject.toml
	@echo "installing the lowest supported JAX into .venv-lowest"
	@scripts/install .venv-lowest "$(PYTHON)" test jax==0.10.0 jaxlib==0.10.0
	@touch $@

test-newest test-lowest: test-%: .venv-%/.installed
	@.venv-$*/bin/python -c "import jax, sys; print('JAX', jax.__version__, 'Python', sys.version.split()[0])"
	.venv-$*/bin/python -m pytest -n $(WORKERS) --dist worksteal $(CORE)

clean:
	rm -rf .venv .venv-newest .venv-lowest .venv-tensorflow .venv-torch benchmarks/.results demo_report .pytest_cache .mypy_cache .ruff_cache .hypothesis
