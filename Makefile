# `make serve` runs the broker, `make test` passes the tests; both set up all they need in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup build serve test clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet 'setuptools>=77' Cython==3.3.1
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[test]'
	touch $@

setup: $(STAMP) build ## virtual environment in .venv, the build, the package and its command

build: ## compile what changed
	@flock .venv/.build-lock $(BIN)/python setup.py --quiet build_ext --inplace --parallel 2 2>&1 | tee build/build.log | grep -v '^\[\|^Compiling' || true
	@! grep -n "performance hint" build/build.log

serve: setup ## run the broker on port 1883
	$(BIN)/tidemq serve

test: setup ## run the tests
	$(BIN)/pytest

bench: setup ## compare with Mosquitto under the same load (10 minutes; Debian package mosquitto)
	$(BIN)/python benchmarks/run.py
