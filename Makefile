# make quickstart   a first deployment of two real services, from nothing; ARGS go to 'coexist up'
# make test         everything: linters, types, architecture, all tests; ARGS go to pytest
# make test-fast    the same without the slow tests (real models, real compiles)
# make models       the two small models under models/
# make lock         the versions of today as requirements/lock-py*.txt, for the Python of .venv
# make clean        removes what the above made, the models apart
# JOBS=…            how many tests run at once: as many as there are CPUs, four at most
# PYTHON=…          which interpreter .venv is made with (3.10 or newer)
.PHONY: help quickstart test test-fast models lint lock clean
BIN := .venv/bin
JOBS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
export PYTHON

help:
	@sed -n 's/^# make/make/p' Makefile

# Standard output is coexist's alone; set-up speaks on standard error. Ctrl-C is the ordinary end: the shell waits for
# coexist to drain (trap), and its 130 is no error.
quickstart:
	@scripts/setup.sh run
	@$(BIN)/python scripts/fetch_models.py >&2
	@trap : INT; $(BIN)/coexist up configs/quickstart.yaml $(ARGS) || { code=$$?; test $$code -eq 130 || exit $$code; }

test: lint models
	$(PYTEST) $(ARGS)

test-fast: lint
	$(PYTEST) -m "not slow" $(ARGS)

lint:
	@scripts/setup.sh dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

models:
	@test -x $(BIN)/python || scripts/setup.sh run
	@$(BIN)/python scripts/fetch_models.py

lock:
	@scripts/setup.sh dev
	@$(BIN)/python scripts/lock.py

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
