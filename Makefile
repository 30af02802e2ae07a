# The short way in. `make report` and `make test` do all the set-up they need.
# The first interpreter that starts: a version manager may leave names on the path that lead nowhere.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13; do $$p -c '' 2>/dev/null && { echo $$p; exit; }; done; echo python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
CORES  ?= all
# Some tools look for others beside them (snakefmt for shfmt).
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: report test lint lock clean
.DELETE_ON_ERROR:

# A line a run says how far it is (profiles/default, `logger`). Whatever it exits with, 1 for a broken gate or a failed run, make exits with 2.
report: $(VENV)/.installed
	$(BIN)/snakemake --cores $(CORES) $(ARGS)

# Linters first, so that the test runner's own closing line is the last one printed. Files go to the workers in the order
# of tests/conftest.py, those that take longest first; the runner's own order is by the number of tests. A worker more than
# two processors can serve, since tests of the workflow mostly wait for processes.
test: lint test-setup
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 10 $(ARGS)

# Hours: 10,000 changed traces, 1,000 made ones for each property, and kills and other faults at random moments; see docs/reliability.md.
.PHONY: soak
soak: $(VENV)/.installed-dev
	$(BIN)/pytest tests/properties --hypothesis-profile soak --timeout 0 $(ARGS)
	$(BIN)/pytest -m slow --timeout 0 $(ARGS)

# Known faults of every locked version. It asks a server; in an environment of its own, since nothing else needs it.
VENV_AUDIT ?= .venv-audit
.PHONY: audit
audit:
	$(PYTHON) -m venv $(VENV_AUDIT)
	$(VENV_AUDIT)/bin/pip install --quiet pip-audit
	$(VENV_AUDIT)/bin/pip-audit --strict --no-deps --disable-pip -r requirements.lock -r requirements-dev.lock

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The browser test needs Debian's Chromium. Without root or apt-get the test is skipped and says so.
.PHONY: test-setup
test-setup: $(VENV)/.installed-dev
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null || \
	  echo "chromium could not be installed: the browser tests will be skipped"

# The GPU paths on a stand-in for a CUDA device, see tests/standin/README.md. Not part of `test`, as it downloads a CUDA
# build of PyTorch and Triton (0.7 GB). None of NVIDIA's packages may be there: the stand-ins lie in their place.
VENV_STANDIN ?= .venv-standin
.PHONY: test-standin
test-standin: $(VENV_STANDIN)/.installed-standin
	$(MAKE) --no-print-directory -C tests/standin install VENV=$(abspath $(VENV_STANDIN)) BUILD=$(abspath build/standin)
	$(VENV_STANDIN)/bin/pytest -m '(gpu or standin) and not gpu_values' $(ARGS)

# Whether each release of PyTorch that is supported has the private names that steptrace uses (src/steptrace/torch_names.py),
# what a prediction does without one, and whether Dynamo says what it compiles in words that are known. An environment
# for each release below build/. A build for the CPU will do; where pip finds one for CUDA only, it brings NVIDIA's
# packages (several GB). TORCH_PIP: options for pip, such as an index.
TORCH_RELEASES ?= 2.11 2.12 2.13 2.14
.PHONY: test-torch
test-torch: $(TORCH_RELEASES:%=test-torch-%)
test-torch-%: build/torch-%/.installed
	PYTHONPATH=src build/torch-$*/bin/python -m pytest -n0 -p no:cacheprovider \
	  tests/predict/test_torch_names.py tests/engine/test_compilations.py $(ARGS)
build/torch-%/.installed:
	$(PYTHON) -m venv build/torch-$*
	build/torch-$*/bin/pip install -q $(TORCH_PIP) 'torch==$*.*'
	build/torch-$*/bin/pip install -q '.[lab]' pytest pytest-timeout pytest-xdist hypothesis
	touch $@
.PRECIOUS: build/torch-%/.installed

# Programs of Lightning, transformers, Accelerate and others, by the real packages on a CPU. Not part of `test`, which
# skips them: they bring some fifty packages, which are not locked.
VENV_FRAMEWORKS ?= .venv-frameworks
.PHONY: test-frameworks
test-frameworks: $(VENV_FRAMEWORKS)/.installed-frameworks
	$(VENV_FRAMEWORKS)/bin/pytest -m frameworks $(ARGS)

# One folder that opens offline. An environment of its own, since nothing else needs these packages.
VENV_DOCS ?= .venv-docs
.PHONY: docs
docs: $(VENV_DOCS)/.installed-docs
	$(VENV_DOCS)/bin/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo $(abspath build/docs/index.html)

# The pages of the results in reports/reference, after a change of words, rules or pages; see docs/reference_pages.py.
.PHONY: reference-pages
reference-pages: $(VENV)/.installed
	$(BIN)/python docs/reference_pages.py

# The README's pictures, from the results in reports/reference; see docs/pictures.py.
.PHONY: pictures
pictures: $(VENV)/.installed-dev test-setup
	$(BIN)/python docs/pictures.py

# The lock files name every package of a fresh environment; torch stays at the version named here.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install -q torch==2.13.0 && build/lock/bin/pip install -q '.[lab]'
	build/lock/bin/pip freeze --exclude steptrace | sed 's/+cpu$$//' > requirements.lock
	build/lock/bin/pip install -q -r requirements-dev.in
	{ echo "-r requirements.lock"; build/lock/bin/pip freeze --exclude steptrace | sed 's/+cpu$$//' | grep -vxFf requirements.lock; } > requirements-dev.lock

	rm -rf build/lock && $(PYTHON) -m venv build/lock && build/lock/bin/pip install -q -r requirements-docs.in
	build/lock/bin/pip freeze > requirements-docs.lock

clean:
	rm -rf results .snakemake reports/*.html reports/*.ipynb build ext/giou/build
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(VENV)/.installed: requirements.lock pyproject.toml $(wildcard ext/compiled/*.[ch])
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "steptrace needs Python 3.11 to 3.13, found %d.%d: set PYTHON=/path/to/python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@

$(VENV_FRAMEWORKS)/.installed-frameworks: requirements.lock requirements-dev.lock requirements-frameworks.in pyproject.toml
	$(PYTHON) -m venv $(VENV_FRAMEWORKS)
	$(VENV_FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(VENV_FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(VENV_FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-frameworks.in
	@touch $@

$(VENV_DOCS)/.installed-docs: requirements-docs.lock
	$(PYTHON) -m venv $(VENV_DOCS)
	$(VENV_DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	@touch $@

$(VENV_STANDIN)/.installed-standin: requirements.lock requirements-dev.lock pyproject.toml
	$(PYTHON) -m venv $(VENV_STANDIN)
	$(VENV_STANDIN)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  $$(sed -n 's/^torch==/torch===/p' requirements.lock)
	$(VENV_STANDIN)/bin/python -c 'import importlib.metadata as m; \
	  print(*(need.split(";")[0] for need in m.requires("torch") if need.startswith("triton")))' | \
	  xargs $(VENV_STANDIN)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps
	grep -hv '^torch==\|^-r' requirements.lock requirements-dev.lock | \
	  $(VENV_STANDIN)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r /dev/stdin
	$(VENV_STANDIN)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
