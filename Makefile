# Every target builds its own environment. The first build compiles llama.cpp from source: 8 to 15 minutes on two
# cores; pip keeps the wheel, so the next one takes a minute.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench bench-accuracy bench-opt clean

$(READY): pyproject.toml constraints.txt
	@echo "Building $(VENV). The first time this compiles llama.cpp, which takes 8 to 15 minutes without output."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

demo: $(READY)
	$(BIN)/langchain-dp demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy integrations

test: lint
	$(BIN)/python -m pytest

bench: $(READY)
	$(BIN)/python tests/benchmarks/bench_icl.py
	$(BIN)/python tests/benchmarks/bench_writer.py
	$(BIN)/python tests/benchmarks/bench_rapt.py

# Needs LANGCHAIN_DP_DATA: a folder with sst2/, trec/ and agnews/, each holding train.jsonl and test.jsonl.
bench-accuracy: $(READY)
	$(BIN)/python tests/benchmarks/bench_accuracy.py

# Needs LANGCHAIN_DP_DATA: a folder with sst2/ and trec/. Takes hours; goes on where it stopped.
bench-opt: $(READY)
	$(BIN)/python tests/benchmarks/bench_opt.py

clean:
	rm -rf $(VENV) build dist *.egg-info
