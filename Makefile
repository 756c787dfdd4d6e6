# setup       everything a run needs, into .venv (repeat runs skip what is done)
# quickstart  train the shipped recipe on this machine; continues a run that was stopped
# test        lint and the tests that need neither hours nor a GPU
# lint        style, types, import direction and size budget
# format      rewrite Python files in the house style
# docs        write the generated reference pages again
# base        make the shipped policy again, in runs/base (about 90 minutes on two cores)
# clean       remove what setup and the tools made; runs/ stays

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip
RUN := runs/quickstart

.PHONY: setup quickstart test lint format docs base clean
.DELETE_ON_ERROR:

setup: .venv/.tasks

.venv/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it with make PYTHON=..."; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { rm -rf .venv; \
		echo "$(PYTHON) cannot make environments: install its venv and ensurepip modules (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@touch $@

.venv/.torch: .venv/.made constraints.txt
	$(PIP) install --quiet -c constraints.txt torch==2.13.0
	@touch $@

.venv/.installed: .venv/.torch pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[dev,serve]'
	@touch $@

.venv/.tasks: .venv/.installed $(wildcard src/frontrunner/envs/data/quickstart.jsonl)
	$(BIN)/frontrunner tasks materialise quickstart
	@touch $@

quickstart: setup
	@if $(BIN)/frontrunner report $(RUN) --json 2>/dev/null | grep -q '"final": {'; then \
		echo "$(RUN) is finished; remove it to train again"; \
		$(BIN)/frontrunner report $(RUN); \
	elif [ -f $(RUN)/config.json ]; then \
		$(BIN)/frontrunner train --resume $(RUN); \
	else \
		$(BIN)/frontrunner train recipes/quickstart.toml run.directory=$(RUN); \
	fi

test: setup lint
	$(BIN)/python -m pytest -q

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_imports.py tests/unit/test_size_budget.py

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed
	$(BIN)/python tools/config_docs.py

base: .venv/.installed
	$(PIP) install --quiet -c constraints.txt -e '.[sft]'
	test -f runs/base-1/recipe.json || $(BIN)/frontrunner sft --out runs/base-1 --resume
	test -f runs/base-2/recipe.json || $(BIN)/frontrunner sft --out runs/base-2 --resume \
		init=runs/base-1 seed=1 learning_rate=3e-3 drills=26000 trajectories=12000
	$(BIN)/frontrunner sft --out runs/base --resume init=runs/base-2 seed=2 learning_rate=1e-3 \
		drills=0 trajectories=5000 careless=0.5

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
