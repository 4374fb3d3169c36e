# `make demo` and `make test` need Python (3.10 or newer) and make, nothing else; both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Some images forbid Python to keep what it compiles; then each of the many processes here compiles torch again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-crash lint docs site tutorial slow bench clean

# A current pip resolves several times as fast, and most modules of what is installed are never compiled.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/python -m distill.demo

# One process per core and two more, because many tests wait; each computes with one thread. Types are
# checked beside them, as that takes one core.
test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal -n \
		$$($(BIN)/python -c "import os; print(min((os.cpu_count() or 1) + 2, 8))") && wait $$types

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

slow: $(READY)
	$(BIN)/python -m pytest --slow

test-crash: $(READY)
	$(BIN)/python -m pytest tests/crash --slow -s

docs: $(READY)
	$(BIN)/python docs/generate_cli_reference.py
	$(BIN)/python docs/generate_keywords.py
	$(BIN)/python docs/generate_papers.py
	$(BIN)/python docs/generate_tutorial.py

# The documentation as a website in site/. A broken link or a name that the code does not have is an error.
site: $(READY)
	$(BIN)/zensical build --strict --clean

# Executes the tutorial in place, and writes its page; both are committed.
tutorial: $(READY)
	$(BIN)/python docs/execute_tutorial.py
	$(BIN)/python docs/generate_tutorial.py

bench: $(READY)
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/teacher_queue.py
	$(BIN)/python benchmarks/scale.py --rows 1000000

clean:
	rm -rf .venv demo site .cache
