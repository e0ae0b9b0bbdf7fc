# Two commands for a new user: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# `make test TORCH=2.8` plays what is about torch under another one, in an environment of its own.
TORCH ?=
OTHER := .venv-torch$(TORCH)

.PHONY: demo test lint format pytest overhead drills docs clean

demo: .venv/.ready
	@$(BIN)/firstbad demo $(ARGS)

ifeq ($(TORCH),)
test: lint pytest
else
test: $(OTHER)/.ready
	$(OTHER)/bin/python -m pytest tests/agent tests/drills $(ARGS)
endif

pytest: .venv/.ready-dev
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

overhead: .venv/.ready-dev
	$(BIN)/python -m benchmarks.overhead $(ARGS)

# The whole drill matrix, some 20 minutes on 2 cores; `make test` plays a sample. ARGS="fsdp2/ grad" plays a part.
drills: .venv/.ready-dev
	$(BIN)/python -m tests.drills $(ARGS)

docs: .venv/.ready-dev
	$(BIN)/python -m firstbad.schema.docs
	$(BIN)/python -m firstbad.cli.docs

clean:
	rm -rf .venv .venv-torch* firstbad-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build

# uv, inside the environment itself, installs torch in seconds from its cache and in about two minutes without one.
.venv/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "firstbad needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check uv

.venv/.ready: .venv/bin/uv pyproject.toml
	@echo "Installing firstbad with torch and the embedded ClickHouse (a cold torch install takes about two minutes)"
	@$(BIN)/uv pip install --python $(BIN)/python -q -e '.[collector]' torch numpy
	@touch $@

.venv/.ready-dev: .venv/.ready
	@$(BIN)/uv pip install --python $(BIN)/python -q --group dev
	@touch $@

.venv-torch%/.ready: .venv/bin/uv pyproject.toml
	@echo "Installing firstbad with torch $* into $(@D)"
	@$(BIN)/uv venv -q --allow-existing --python $(BIN)/python $(@D)
	@$(BIN)/uv pip install --python $(@D)/bin/python -q -e '.[collector]' 'torch==$*.*' --group test
	@touch $@
