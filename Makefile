# Each target does its own set-up: `make demo` and `make test` work on a fresh clone.
#
#   make test CONSTRAINTS=.ci/constraints.txt   pins what pip installs
#   make test PYTHON=python3.12 VENV=/tmp/venv  another interpreter, another place

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?=
EXTRAS ?= cu13,sass,ptxas,test
PYTEST_ARGS ?=
REPORT_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CU12 := $(VENV)/cu12
HEADERS = $(shell git ls-files '*.hpp' '*.h' '*.cpp' 2>/dev/null || \
  find codegen hopper ampere cute_attn/export examples -name '*.[hc]pp' -o -name '*.h')

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-gpu report lint format clean

help:
	@echo "make demo      set up, then run the demo (a GPU is used if there is one)"
	@echo "make test      set up, lint and run the everyday tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make test-gpu  the tests that need a CUDA device"
	@echo "make report    report.html from the records in perf/results; REPORT_ARGS=\"--out x.html\""
	@echo "make lint      ruff, mypy, import contracts, clang-format"
	@echo "make format    rewrite Python and C++ files in the project's style"
	@echo "make clean     remove .venv, caches and build output"

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "cute_attn needs Python 3.10 or newer; set PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check \
	  $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[$(EXTRAS)]'
	@touch $@

# The CUDA 12 compiler beside the CUDA 13 one, for the test that kernels build with both: the wheels
# of the cu12 extra in a folder of their own, which no import sees.
$(CU12)/.installed: $(STAMP)
	rm -rf $(CU12)
	$(BIN)/python -c 'from importlib.metadata import requires; \
	  print(*(r.partition(";")[0] for r in requires("cute-attn") if "cu12" in r.partition(";")[2]), sep="\n")' \
	  > $(CU12).txt
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps \
	  --target $(CU12) -r $(CU12).txt
	@touch $@

demo: $(STAMP)
	$(BIN)/cute-attn demo

test: lint $(CU12)/.installed
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: lint $(CU12)/.installed
	$(BIN)/python -m pytest -m "not gpu" $(PYTEST_ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

report: $(STAMP)
	$(BIN)/python -m perf.report $(REPORT_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@test -z "$(HEADERS)" || $(BIN)/clang-format --dry-run --Werror $(HEADERS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@test -z "$(HEADERS)" || $(BIN)/clang-format -i $(HEADERS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
