# Two commands matter: `make serve` and `make test`. Everything that they need is made here first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.ONESHELL:
.SHELLFLAGS := -eu -o pipefail -c

VENV := .venv
BIN := $(VENV)/bin
DISTRIBUTIONS := sdk wasm wasm/edge envoy services/router services/batcher services/worker services/kvcache

# Byte code is written once, at installation: importing without it costs each process more than a second.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: serve
serve: $(VENV)/.filter ## Run the mesh with the demo models (PORT=8080)
	@exec $(BIN)/mcprun serve --demo $(if $(PORT),--port $(PORT))

.PHONY: test
test: $(VENV)/.test ## Run every test but the heavy ones
	@$(BIN)/python -m pytest -m "not heavy"

.PHONY: test-heavy
test-heavy: $(VENV)/.test ## Run the heavy tests
	@$(BIN)/python -m pytest -m heavy

.PHONY: lint
lint: $(VENV)/.test ## Check style and types
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy sdk/src wasm/src wasm/edge/src envoy/src services/*/src tests bench

.PHONY: bench
bench: $(VENV)/.test ## Measure the mesh beside ONNX Runtime and Triton in one run
	@$(BIN)/python bench/throughput.py

.PHONY: bench-filter
bench-filter: $(VENV)/.test ## Measure the edge filter beside none and one written by hand
	@$(BIN)/python -m bench.edge_filter

.PHONY: env
env: $(VENV)/.test ## Make the environment of all of the above

.PHONY: lock
lock: $(VENV)/.uv ## Pin the newest versions that fit
	@cd requirements
	for name in runtime test; do
	  ../$(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate $$name.in -o $$name.txt
	done

.PHONY: clean
clean: ## Remove the environment and what was made
	@rm -rf $(VENV) .mcprun sdk/src/mcprun/protocol $(FILTER)/filter.wasm

$(VENV)/.uv:
	@bash tools/make-venv $(VENV)
	touch $@

$(VENV)/.runtime: $(VENV)/.uv requirements/runtime.txt requirements/models.txt $(shell find proto -name '*.proto') $(DISTRIBUTIONS:=/pyproject.toml) sdk/build_protocol.py
	@bash tools/install $(VENV) runtime $(DISTRIBUTIONS)
	touch $@

FILTER := wasm/edge/src/mcprun_filter

$(FILTER)/filter.wasm: $(VENV)/.runtime $(shell find wasm -name '*.py' -o -name '*.py.txt' -o -name '*.wit')
	@$(BIN)/proxy-wasm build $(FILTER)/app.py -o $@

$(VENV)/.filter: $(FILTER)/filter.wasm
	@touch $@

$(VENV)/.test: $(VENV)/.filter requirements/test.txt
	@bash tools/install $(VENV) test
	touch $@
