# Every target builds its own environment. The first build compiles llama.cpp from source: 5 to 15 minutes on two
# cores; pip keeps the wheel, so the next one takes a minute.
PYTHON ?= python3
# GCC's builds of llama.cpp for Intel's AMX end the process. The package keeps away from it; a notebook's server would not.
export CMAKE_ARGS ?= -DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
QUICK := .venv-check
DEMO := .venv-demo
PASSED := $(QUICK)/passed.txt

.PHONY: demo check test lint audit cookbook docs package bench bench-accuracy bench-prototypes bench-opt bench-sanitized bench-tuning bench-attacks reproduce clean

$(READY): BRINGS = dev
$(QUICK)/.ready: BRINGS = check
$(DEMO)/.ready: BRINGS = encoder,plot
$(READY): SLOW = The first time this compiles llama.cpp, which takes 5 to 15 minutes without output.

$(READY) $(QUICK)/.ready $(DEMO)/.ready: pyproject.toml constraints.txt
	@echo "Building $(@D). $(SLOW)"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[$(BRINGS)]"
	@touch $@

# In an environment of its own with what it needs and no more: no torch, no tests. The first part needs no compiler.
demo: $(DEMO)/.ready
	$(DEMO)/bin/langchain-dp demo --part prototypes
	@$(DEMO)/bin/python -c "import llama_cpp" 2>/dev/null || echo "Now llama.cpp is compiled for a vote by a language \
	model: 5 to 15 minutes without output, the first time."
	$(DEMO)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[encoder,local,plot]"
	$(DEMO)/bin/langchain-dp demo --part votes

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy integrations

# For while you work: two minutes, in an environment of its own without torch or llama.cpp.
check: $(QUICK)/.ready
	$(QUICK)/bin/ruff check .
	$(QUICK)/bin/ruff format --check .
	$(QUICK)/bin/mypy
	$(QUICK)/bin/mypy integrations
	PYTHONHASHSEED=0 $(QUICK)/bin/python -m pytest --fast --quiet --numprocesses auto --dist loadfile --passed-to=$(PASSED)

# Everything, in a process a processor, each of which takes up to 3.5 GB. Threads of two that take the same processors
# wait for each other: one each. With WITHOUT, a file of tests that `make check` saw pass, all others, without its lint.
test: $(if $(WITHOUT),,lint) $(READY)
	PYTHONHASHSEED=0 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal \
		$(if $(WITHOUT),--without=$(WITHOUT))

# Every audit with its planted faults, and a table at the end.
audit: $(READY)
	$(BIN)/python tests/audits/run.py --jobs 2

# Runs every notebook and writes it with its outputs.
cookbook: $(READY)
	$(BIN)/python cookbook/build.py

# The reference, from the docstrings, in site/. A broken reference or an unexplained public name is an error.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict
	@echo "Open site/index.html"

# The wheel in a clean environment without extras and with each, and the tests this must pass. Needs an index, 4 GB of
# disk and an hour; EXTRAS="none rapt" tries only these.
package: $(READY)
	$(BIN)/python tests/package_checks/run.py $(EXTRAS)

# With LANGCHAIN_DP_DATA, a folder of folders that hold train.jsonl, also what sanitizing a long text takes.
bench: $(READY)
	$(BIN)/python tests/benchmarks/bench_icl.py
	$(BIN)/python tests/benchmarks/trace_calls.py
	$(BIN)/python tests/benchmarks/bench_writer.py
	$(BIN)/python tests/benchmarks/bench_rapt.py
	$(BIN)/python tests/benchmarks/bench_ledger.py

# Needs LANGCHAIN_DP_DATA: a folder with sst2/, trec/ and agnews/, each holding train.jsonl and test.jsonl.
bench-accuracy: $(READY)
	$(BIN)/python tests/benchmarks/bench_accuracy.py

# Needs LANGCHAIN_DP_DATA: a folder with agnews/, trec/, sst2/, amazon/, mpqa/, disaster/ and trustpilot/. Ten minutes.
bench-prototypes: $(READY)
	$(BIN)/python tests/benchmarks/bench_prototypes.py --speed
	$(BIN)/python tests/benchmarks/bench_prototypes.py --parts 1000000
	$(BIN)/python tests/benchmarks/bench_prototypes.py

# Needs LANGCHAIN_DP_DATA: a folder with sst2/ and trec/. Takes hours; goes on where it stopped.
bench-opt: $(READY)
	$(BIN)/python tests/benchmarks/bench_opt.py

# Needs LANGCHAIN_DP_DATA: a folder with sst2/. Goes on where it stopped.
bench-sanitized: $(READY)
	$(BIN)/python tests/benchmarks/bench_sanitized.py

# Needs LANGCHAIN_DP_DATA: a folder with sst2/. Takes hours; goes on where it stopped.
bench-tuning: $(READY)
	$(BIN)/python tests/benchmarks/bench_tuning.py

# Needs LANGCHAIN_DP_DATA: a folder with sst2/, mpqa/ and trustpilot/. Goes on where it stopped.
bench-attacks: $(READY)
	$(BIN)/python tests/benchmarks/bench_attacks.py

# The papers' tables, in docs/reproduction.md. Needs LANGCHAIN_DP_DATA: a folder with sst2/, trec/, agnews/, amazon/ and
# mpqa/. Takes many hours; goes on where it stopped.
reproduce: $(READY)
	$(BIN)/python tests/benchmarks/reproduce.py

clean:
	rm -rf $(VENV) $(QUICK) $(DEMO) build dist site *.egg-info
