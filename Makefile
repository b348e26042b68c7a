# Two commands on a machine with Python 3.11 or newer and make:
#
#     make tour      the environment, then the guided tour on this machine's disk
#     make test      the environment, then every check
#
# The environment is .venv, made with uv where uv is on the PATH, else with venv and pip and
# .ci/constraints.txt (exported from uv.lock: the same versions either way). It is brought up to date
# only when pyproject.toml or the lock changed. `make UV= ...` does without uv, `make PYTHON=python3.13 ...`
# chooses the interpreter, `make tour ARGS="--seed 7"` passes arguments on, `make test WORKERS=0` runs the
# tests in one process.

PYTHON ?=
UV ?= $(shell command -v uv 2>/dev/null)
ARGS ?=
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
LOCKED := pyproject.toml uv.lock .ci/constraints.txt
EXPORT := export --quiet --frozen --format requirements.txt --no-hashes --all-extras --no-emit-project \
	--no-annotate --no-header
PYPI := https://pypi.org/simple

.PHONY: help tour test campaign format lock clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

tour: $(VENV)/.run ## load, overwrite, kill, cut the power, recover, measure: about half a minute
	@$(BIN)/python -m labs tour $(ARGS)

test: $(VENV)/.test ## every check: ruff, mypy, import-linter, pytest with doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m "not campaign" -n $(WORKERS) $(ARGS)

campaign: $(VENV)/.test ## the tests that take long (pytest's exit code 5, "no test", is fine)
	LSMLAB_EXPLORE=1 $(BIN)/python -m pytest -m campaign -n $(WORKERS) $(ARGS) || test $$? -eq 5

format: $(VENV)/.test ## put the sources into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## resolve anew: uv.lock, and the constraints for pip (needs uv)
	@test -n "$(UV)" || { echo "make lock needs uv: https://docs.astral.sh/uv/"; exit 1; }
	"$(UV)" --no-config lock --upgrade --default-index $(PYPI)
	"$(UV)" --no-config $(EXPORT) --output-file .ci/constraints.txt

clean: ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What `make tour` needs, and what the checks need on top of it.
$(VENV)/.run: $(LOCKED) .ci/environment
	@PYTHON="$(PYTHON)" UV="$(UV)" sh .ci/environment $(VENV) speed
	@touch $@

$(VENV)/.test: $(LOCKED) .ci/environment
	@PYTHON="$(PYTHON)" UV="$(UV)" sh .ci/environment $(VENV) speed test
	@touch $(VENV)/.run $@
