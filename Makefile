# Everything a newcomer needs: `make demo` and `make test`. Environments are created on demand and kept.
VENV   ?= .venv
# The newest supported Python on this machine gets the newest supported JAX: what new users install.
PYTHON ?= $(shell scripts/find_python 3.11 3.13 --anywhere)
# The lowest supported one, for `make test-lowest` and for peers whose wheels lag behind new Pythons.
LOWEST_PYTHON ?= $(shell scripts/find_python 3.11 3.11 --anywhere || scripts/find_python 3.11 3.13 --anywhere)
RUN     = $(VENV)/bin/python
PYTEST  = $(RUN) -m pytest
WORKERS ?= 2
# Tests start hundreds of processes. Without files of bytecode, each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# What must hold on every supported JAX: all but the demo, the examples and the tools around them.
CORE    = tests --ignore=tests/cli --ignore=tests/test_readme.py --ignore=tests/test_layers.py -m "$(CORE_MARKS)"
CORE_MARKS ?= not slow and not chaos

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long explore soak guarantees guarantees-sources test-slow test-lowest bench bench-quick bench-peers bench-previous \
  test-gpu-dry-run docs docs-check docs-execute docs-test lint format clean

help:
	@echo "make demo         trains a convnet on 4 replicas and writes a report to demo_report/ (under 3 minutes)"
	@echo "make test         runs the test suite (about 15 minutes on 2 cores)"
	@echo "make test-long    runs the longer tests that CI runs, too: tutorials, examples, further cases of large tests"
	@echo "make test-slow    runs the slow tests: long trainings, chaos, every case of the sampled tests"
	@echo "make explore      runs the property-based tests with new random examples"
	@echo "make soak         compares random training programs with single-device JAX for 10 minutes (SEED=1 for others)"
	@echo "make guarantees   tests all cells of the guarantee matrix (docs/guarantees.md); guarantees-sources: with PyTorch and datasets"
	@echo "make install      installs everything that a developer needs into $(VENV)"
	@echo "make bench        runs all benchmarks and writes their report (half an hour); make bench-quick: some (3 minutes)"
	@echo "make bench-peers  installs TensorFlow and PyTorch for the benchmarks, in separate environments"
	@echo "make bench-previous  installs the previous JAX, for the benchmarks' comparison of versions"
	@echo "make lint         runs the linter, the format check and the type checkers, these also over programs of users"
	@echo "make format       formats the code, and corrects what the linter can correct"
	@echo "make docs         builds the documentation site into build/docs/html; make docs-execute: executes the tutorials first"
	@echo "make docs-check   builds it without executing the tutorials, as CI does: links, references, images (3 minutes)"
	@echo "make docs-test    opens the built site in headless Chromium: console, search, pictures of pages"
	@echo "make test-lowest  runs the core of the suite on the lowest supported Python and JAX"
	@echo "make test-gpu-dry-run  runs the GPU benchmarks at tiny sizes on the CPU, on Python 3.12 with JAX 0.11.2"
	@echo "make clean        removes the environments, and everything that these commands have built"

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
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations 15 -m "not long and not slow and not chaos"

test-long: $(VENV)/.installed-test
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations 15 -m "long and not slow and not chaos"

explore: $(VENV)/.installed-test
	$(PYTEST) --hypothesis-profile=explore $$(grep -rl "^from hypothesis" tests/*/)

SEED ?= 0
soak: $(VENV)/.installed-test
	$(RUN) tools/soak.py --minutes 10 --seed $(SEED)

guarantees: $(VENV)/.installed-test
	$(PYTEST) -n $(WORKERS) --dist worksteal tests/guarantees

# PyTorch and Hugging Face datasets in an environment of their own; the CPU build where there is one to be had.
.venv-sources/.installed: pyproject.toml
	@scripts/install .venv-sources "$(LOWEST_PYTHON)" test
	.venv-sources/bin/python -m pip install --quiet datasets torch==2.13.0+cpu || \
	  .venv-sources/bin/python -m pip install --quiet datasets torch==2.13.0
	@touch $@

guarantees-sources: .venv-sources/.installed
	.venv-sources/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/guarantees/test_sources.py

test-slow: $(VENV)/.installed-test
	$(PYTEST) -n $(WORKERS) --dist worksteal --durations 15 -m "slow or chaos"

bench: $(VENV)/.installed-test
	$(RUN) benchmarks/run.py

bench-quick: $(VENV)/.installed-test
	$(RUN) benchmarks/run.py --quick

# Contenders in environments of their own; without them the benchmarks say so and go on.
bench-peers: .venv-tensorflow/.installed .venv-torch/.installed

# The newest JAX for Python 3.11, so that a report can tell what a newer JAX changes.
bench-previous: .venv-previous/.installed

.venv-previous/.installed: pyproject.toml
	@scripts/install .venv-previous "$(LOWEST_PYTHON)" test jax==0.10.2 jaxlib==0.10.2
	@touch $@

.venv-tensorflow/.installed:
	$(PYTHON) -m venv .venv-tensorflow
	.venv-tensorflow/bin/python -m pip install --quiet tensorflow-cpu==2.21.0 || \
	  .venv-tensorflow/bin/python -m pip install --quiet tensorflow==2.21.0
	@touch $@

# The CPU build where there is one to be had: the default one brings gigabytes of CUDA.
.venv-torch/.installed:
	$(LOWEST_PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet numpy torch==2.13.0+cpu || \
	  .venv-torch/bin/python -m pip install --quiet numpy torch==2.13.0+cpu \
	    --extra-index-url https://download.pytorch.org/whl/cpu || \
	  .venv-torch/bin/python -m pip install --quiet numpy torch==2.13.0
	@touch $@

# The site is built outside docs/, whose pages the tests and tools list. The tutorials' outputs are kept in a cache; a
# build executes only those whose cells have changed.
SPHINX = $(RUN) -m sphinx -W --keep-going -q -b html docs build/docs/html

docs: $(VENV)/.installed-docs
	PYTHONPATH=src $(SPHINX)
	@echo "open build/docs/html/index.html"

# What CI checks of the site: links, references, images, undocumented names. The tutorials run in make test-long.
docs-check: $(VENV)/.installed-docs
	PYTHONPATH=src $(RUN) -m sphinx -W --keep-going -q -b html -D nb_execution_mode=off docs build/docs/check

docs-execute: $(VENV)/.installed-docs
	rm -rf build/docs
	PYTHONPATH=src $(SPHINX)

docs-test: docs
	$(RUN) tools/test_site.py build/docs/html

lint: $(VENV)/.installed-lint
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m codespell_lib src tests docs README.md
	$(RUN) -m mypy
	$(RUN) tools/check_user_programs.py

format: $(VENV)/.installed-lint
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

# The lower end of the supported range, in an environment of its own; the upper end is $(VENV).
.venv-lowest/.installed: pyproject.toml
	@echo "installing the lowest supported JAX into .venv-lowest"
	@scripts/install .venv-lowest "$(LOWEST_PYTHON)" test jax==0.10.0 jaxlib==0.10.0
	@touch $@

test-lowest: .venv-lowest/.installed
	@.venv-lowest/bin/python -c "import jax, sys; print('JAX', jax.__version__, 'Python', sys.version.split()[0])"
	.venv-lowest/bin/python -m pytest -p no:cacheprovider -n $(WORKERS) --dist worksteal $(CORE)

# What a GPU machine has: Python 3.12, JAX 0.11.2, not all of the optional packages.
.venv-gpu/.installed: pyproject.toml
	@echo "installing JAX 0.11.2 into .venv-gpu"
	@scripts/install .venv-gpu "$$(scripts/find_python 3.12 3.12 --anywhere)" checkpoint,flax,keras \
	  jax==0.11.2 jaxlib==0.11.2 hypothesis pytest pytest-timeout
	@touch $@

test-gpu-dry-run: .venv-gpu/.installed
	PYTHON=$(CURDIR)/.venv-gpu/bin/python benchmarks/gpu/run.sh --dry-run --out benchmarks/.results/gpu-dry-run \
	  $(if $(PIECES),--only $(PIECES))

clean:
	rm -rf .venv .venv-sources .venv-lowest .venv-gpu .venv-previous .venv-tensorflow .venv-torch benchmarks/.results build demo_report .pytest_cache .mypy_cache .ruff_cache .hypothesis
