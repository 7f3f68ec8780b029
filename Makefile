# make run: set up .venv and judge our capturer.  make test: the same .venv, all tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test venv lint types fetch wheel e2e-vllm clean

run: $(READY)
	$(BIN)/routeproof run

test: $(READY)
	$(BIN)/python -m pytest

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "routeproof needs Python 3.11 or newer: set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' \
		|| { echo "Python cannot make virtual environments: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The files of published engines that some tests drive, into the user's cache.
fetch: $(READY)
	for engine in vllm==0.28.0 vllm==0.30.0 vllm==0.31.0 vllm==0.32.0 vllm==0.33.0 sglang==0.5.23; do \
		$(BIN)/routeproof engines fetch $$engine || exit; done

# A real vLLM server on this machine's CPU, with our capturer in it, against transformers: see docs/vllm-plugin.md.
# An environment of 3.5 GB, made anew unless VLLM_VENV names one to keep.
e2e-vllm: $(READY)
	$(BIN)/python tests/e2e/vllm/run.py $(if $(VLLM_VENV),--venv $(VLLM_VENV))

wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache
