# Every target makes the virtual environment when it is missing or older than what it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FLOWER := .venv-flower
FLOWER_STAMP := $(FLOWER)/.installed
FUZZ := .venv-fuzz
FUZZ_STAMP := $(FUZZ)/.installed
SECONDS ?= 60
WORKERS ?= 2
# Torch's default of one thread a core slows several processes on one machine more than tenfold.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test soak coverage mutants fuzz lint format bench vectors proto clean
.DEFAULT_GOAL := help

help:  ## Show this text
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "feddrm needs Python 3.11 or newer; run: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[silo,query,compare,dev]'
	@touch $@

demo: $(STAMP)  ## Run a whole federation of six hospitals on this machine, on real data
	$(BIN)/feddrm demo $(DEMO)

test: $(STAMP)  ## Run all tests but the soak tests (TEST=path; WORKERS=0: in one process)
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder $(TEST)

soak: $(STAMP)  ## Run the long tests, and look for new examples against the properties
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m 'soak or hypothesis' --timeout 7200 $(TEST)

coverage: $(STAMP)  ## Measure which branches of secagg its tests reach; fails below 98 percent
	$(BIN)/python -m coverage run -m pytest -q tests/unit/secagg tests/simulation
	$(BIN)/python -m coverage report

mutants: $(STAMP)  ## Remove each check of secure aggregation and private training; a named test must fail (MUTANT=word)
	$(BIN)/python tests/mutation/mutants.py $(MUTANT)

$(FUZZ_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@touch $@

fuzz: $(FUZZ_STAMP)  ## Fuzz what strangers may send, each target for SECONDS=60 (TARGET=name; Linux, needs atheris)
	$(FUZZ)/bin/python tests/fuzz/fuzz.py $(SECONDS) $(TARGET)

lint: $(STAMP)  ## Check style, types, import contracts and that generated code is up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@rm -rf build/proto && mkdir -p build/proto && $(MAKE) --no-print-directory generate OUT=build/proto
	@diff -r -x __init__.py -x __pycache__ build/proto/feddrm/v1 feddrm/v1 \
	  || { echo 'feddrm/v1 is stale: run make proto and commit it'; exit 1; }

format: $(STAMP)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(FLOWER_STAMP): constraints-bench.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-bench.txt flwr numpy
	@touch $@

bench: $(STAMP) $(FLOWER_STAMP)  ## Run the benchmarks, secure aggregation beside Flower's (BENCH=--quick: in a minute)
	$(BIN)/python -m bench $(BENCH)

vectors: $(STAMP)  ## Write the frozen vectors of secure aggregation anew
	$(BIN)/python tests/vectors/generate.py

proto: $(STAMP)  ## Generate feddrm/v1 from proto/
	@$(MAKE) --no-print-directory generate OUT=.

.PHONY: generate
generate:
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(OUT) --pyi_out=$(OUT) --grpc_python_out=$(OUT) \
	  proto/feddrm/v1/*.proto

clean:  ## Remove the virtual environments and what was built
	rm -rf $(VENV) $(FLOWER) $(FUZZ) build dist .mypy_cache .pytest_cache .ruff_cache
