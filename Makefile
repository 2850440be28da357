# make demo | test | test-all | slow | parity | bench | check
PYTHON ?= python3
PYTHON311 ?= $(or $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null),$(lastword $(wildcard $(HOME)/.pyenv/versions/3.11*/bin/python3.11)))
BIN := .venv/bin
REFERENCE := $(or $(EDGE_TRAIN_REFERENCE_PYTHON),.venv-reference/bin/python)
REFERENCE_DONE := $(if $(EDGE_TRAIN_REFERENCE_PYTHON),,.venv-reference/.done)
PYTEST := $(BIN)/python -m pytest -q $(if $(REPORT),--junitxml=$(REPORT))
unexport PYTHONDONTWRITEBYTECODE # the tests start many processes: compiled once is enough
.PHONY: demo test test-all slow parity bench check

demo: .venv/.demo
	$(BIN)/edge-train demo
test: .venv/.dev
	$(PYTEST) -n 2
test-all: .venv/.dev
	$(PYTEST) -n 2 -m "not parity and not bench and not device and not public and not qemu"
slow: .venv/.dev
	$(PYTEST) -n 2 -m slow
parity: .venv/.dev $(REFERENCE_DONE)
	EDGE_TRAIN_REFERENCE_PYTHON=$(abspath $(REFERENCE)) $(PYTEST) -n 2 -m parity
bench: .venv/.dev $(REFERENCE_DONE)
	$(BIN)/python tools/bench.py mlp --reference $(REFERENCE) $(if $(ROUNDS),--rounds $(ROUNDS))
	$(PYTEST) -m bench || [ $$? = 5 ]
check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/line_budget.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "edge_train needs Python 3.10 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
.venv/.demo: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e . && touch $@
.venv/.dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]" && touch $@ .venv/.demo
.venv-reference/.done:
	$(PYTHON311) -m venv .venv-reference
	.venv-reference/bin/python -m pip install -q --disable-pip-version-check \
	  "onnxruntime-training-cpu==1.19.2" "onnx==1.16.2" "numpy<2" "torch==2.13.0" && touch $@
