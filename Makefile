PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp carries this folder's name: a moved clone gets a fresh environment, since scripts in it hold absolute paths.
READY := $(VENV)/ready$(subst /,-,$(subst $() ,-,$(CURDIR)))
LUCEBOX := $(BIN)/lucebox

.DEFAULT_GOAL := help
.PHONY: help setup build demo test lint format prove warnings device-code hostile fuzz fuzz-ci fidelity quality install-check ci clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-14s %s\n", $$1, $$2}'

$(READY): pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,measure]'
	touch "$@"

setup: $(READY) ## make the Python environment

build: $(READY) ## fetch, patch and compile the CPU build
	$(LUCEBOX) build --target cpu

demo: build ## serve the embedded tiny model with its drafter and ask it a question
	$(BIN)/python tools/demo.py

test: build ## run every test that needs no GPU
	LUCEBOX_REQUIRE=$${LUCEBOX_REQUIRE:-native} $(BIN)/python -m pytest

lint: $(READY) ## style, types, import rules, patch headers, spelling
	$(BIN)/python tools/lint.py

format: $(READY) ## rewrite Python and overlay sources in the project's style
	$(BIN)/python tools/lint.py --fix

warnings: build ## compile the C and C++ that is ours with -Wall -Wextra, beside upstream's warnings
	$(BIN)/python tools/check_warnings.py

device-code: build ## compile our GPU kernels and headers for gfx1151, gfx1201, sm_90a; read registers and spills
	$(BIN)/python tools/check_device_code.py

prove: build ## show that every fix of the patch series fails its test when left out (long)
	$(BIN)/python tools/prove_fixes.py

hostile: ## show every hostile file to every reader, under sanitizers; writes docs/results/hostile (long)
	$(BIN)/python tools/hostile_files.py

fuzz: ## fuzz everything that parses, to the full number of executions; writes docs/results/hostile (long)
	$(BIN)/python tools/fuzz.py

fuzz-ci: ## replay the fuzzing corpus, then fuzz for a minute
	$(BIN)/python tools/fuzz.py --seconds 60

fidelity: build ## compare every converted type with the shipped references; writes docs/fidelity
	$(BIN)/python tools/check_fidelity.py

quality: build ## measure every type against the F32 master at equal bytes; writes docs/results (long)
	$(BIN)/python tools/measure_quality.py
	$(BIN)/python tools/render_docs.py

install-check: ## README commands in a clean clone, a moved clone and from a wheel (long)
	ci/install-check

ci: ## the whole check, as CI runs it
	ci/run

clean: ## remove builds and prepared sources, keep the fetched archive
	rm -rf build vendor/pristine vendor/llama.cpp
