# make sweep      measure this machine: from nothing installed to a floor report
# make test       all checks and the fast tests
# make test-all   the slow tests too
# VENV=none       use the installed Python instead of .venv;  PYTHON=python3.12 to choose another

PYTHON ?= python3
VENV ?= .venv
SWEEP_ARGS ?=

ifeq ($(VENV),none)
BIN :=
PY := $(PYTHON)
READY :=
else
BIN := $(VENV)/bin/
PY := $(BIN)python
READY := $(VENV)/.ready
endif

# GPUs of this machine, else two CPU ranks
RANKS = $(shell n=$$(nvidia-smi -L 2>/dev/null | grep -c '^GPU'); [ "$$n" -ge 2 ] && echo $$n || echo 2)

.PHONY: sweep test test-all check setup clean

sweep: setup
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(PY) -m torch.distributed.run --standalone --nproc-per-node=$(RANKS) -m arfloor.sweep $(SWEEP_ARGS)

test: check
	$(PY) -m pytest -m "not slow" -n 2 --dist loadgroup tests

test-all: check
	$(PY) -m pytest -n 2 --dist loadgroup tests

check: setup
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(BIN)lint-imports

setup: $(READY)

# A machine with GPUs needs a CUDA build of torch, and keeps the one it has if one is installed.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "arfloor needs Python 3.11 or newer, found $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 1; }
	@echo "installing arfloor and what it needs into $(VENV): takes a few minutes, once"
	@$(PYTHON) -m venv $(VENV)
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  $(PY) -m pip install --quiet --disable-pip-version-check -e '.[torch,mpi,cuda,notebooks,dev]'; \
	else \
	  $(PY) -m pip install --quiet --disable-pip-version-check -e '.[torch,mpi,cuda,notebooks,dev]' -c constraints.txt; \
	fi
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
