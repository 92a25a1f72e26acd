# tilewheel: `make build` sets up what is missing, builds and self-tests; `make test` runs the tests.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

TARGET ?= cuda,ascend-sim
PROFILE ?= dev
ONLY ?=
ARCHS ?=
JOBS ?= $(shell nproc)
OUT ?= out
CPU ?=
CPUS ?= $(if $(CPU),$(CPU),x86_64,aarch64)
SHARD ?=
SHARDS ?= $(OUT)/shards
DIST ?= dist
CACHE ?=
REMOTE_CACHE ?=
DASK ?=
MEMORY ?=
RESULTS ?= $(if $(BENCH_QUICK),$(OUT)/bench,bench/results)
BENCH_ONLY ?=
BENCH_PROFILE ?=
TOKENS ?=

BUILD_ARGUMENTS = --target '$(TARGET)' --profile '$(PROFILE)' --out '$(OUT)' \
	$(if $(ARCHS),--archs '$(ARCHS)') $(if $(ONLY),--only '$(ONLY)')

BENCH_ARGUMENTS = --out '$(OUT)' --wheels '$(DIST)' --artifacts '$(OUT)/bench/artifacts'

CACHE_OPTIONS = $(if $(CACHE),--cache '$(CACHE)') \
	$(if $(REMOTE_CACHE),--remote-cache '$(REMOTE_CACHE)')

BUILD_OPTIONS = --jobs '$(JOBS)' $(if $(CPU),--machine '$(CPU)') $(if $(SHARD),--shard '$(SHARD)') \
	$(CACHE_OPTIONS) $(if $(DASK),--dask '$(DASK)') $(if $(MEMORY),--memory '$(MEMORY)')

# Artifacts for another processor cannot be tested here.
OTHER_CPU = $(filter-out $(shell uname -m),$(CPU))
WHEEL_ARGUMENTS = $(BUILD_ARGUMENTS) --jobs '$(JOBS)' $(CACHE_OPTIONS) --machines '$(CPUS)' \
	--dist '$(DIST)' --sdist

BENCH_OPTIONS = --out '$(RESULTS)' $(if $(BENCH_ONLY),--only '$(BENCH_ONLY)') \
	$(if $(TOKENS),--tokens '$(TOKENS)') $(if $(BENCH_PROFILE),--profile '$(BENCH_PROFILE)')

# The checkout's own artifacts are found without help.
SELFTEST = $(if $(filter-out out,$(OUT)),TILEWHEEL_ARTIFACTS='$(OUT)/artifacts') \
	$(PY) -m tilewheel selftest

.PHONY: help setup build merge report list lower selftest verify test lint format generate wheel index \
	gpu-bundle sbom bench bench-gpu bench-cpu clean

help: ## print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo
	@echo "TARGET=cuda|all PROFILE=smoke|dev|release|<model>|<path>.yaml ONLY='<glob over keys>' ARCHS=sm_90a JOBS=$(JOBS) SHARD=1/4 CPU=aarch64"
	@echo "REMOTE_CACHE=s3://bucket/directory CACHE=directory DASK=tcp://scheduler:8786 MEMORY=8G (docs/scale.md)"
	@echo "bench: RESULTS=$(RESULTS) BENCH_ONLY=topk_gate TOKENS=64,4096 BENCH_PROFILE=deepseek-v3"

$(STAMP): requirements-dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python: is %d.%d, must be 3.10 or newer" % sys.version_info[:2])'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

setup: $(STAMP) ## create .venv with every pinned tool

build: $(STAMP) ## build artifacts below out/artifacts and self-test what this machine can run
	$(PY) -m tilewheel_build build $(BUILD_ARGUMENTS) $(BUILD_OPTIONS)
	$(if $(SHARD)$(OTHER_CPU),,$(SELFTEST))

merge: $(STAMP) ## publish the shards below SHARDS as one build and self-test them
	$(PY) -m tilewheel_build merge --out '$(OUT)' '$(SHARDS)'
	$(if $(OTHER_CPU),,$(SELFTEST))

report: $(STAMP) ## write the page of the last build's report again
	$(PY) -m tilewheel_build report --out '$(OUT)'

list: $(STAMP) ## print the keys that build would make
	$(PY) -m tilewheel_build list $(BUILD_ARGUMENTS)

lower: $(STAMP) ## write device sources below out/lowered
	$(PY) -m tilewheel_build lower $(BUILD_ARGUMENTS)

selftest: $(STAMP) ## compare built artifacts with the reference on this machine
	$(SELFTEST)

verify: $(STAMP) ## check built artifacts: hashes, symbols, architectures
	$(PY) -m tilewheel_build verify --target '$(TARGET)' --out '$(OUT)' $(if $(CPU),--machine '$(CPU)')

test: $(STAMP) ## lint, types and all tests that this machine can run
	$(MAKE) lint
	$(PY) -m pytest

lint: $(STAMP) ## ruff, mypy and actionlint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/actionlint -shellcheck '$(VENV)/bin/shellcheck'

format: $(STAMP) ## rewrite sources in the project's format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

generate: $(STAMP) ## rewrite specs/schema.json, docs/spec.md and the golden keys
	$(PY) -m tilewheel_build.generate

wheel: $(STAMP) ## build wheels and sdists below dist, for x86_64 and aarch64, and check them
	$(PY) wheels/make_wheels.py $(WHEEL_ARGUMENTS)
	$(PY) wheels/check_wheel.py '$(DIST)'

index: $(STAMP) ## write dist/simple, a PEP 503 index of the wheels in dist
	$(PY) wheels/make_index.py '$(DIST)'

gpu-bundle: $(STAMP) ## pack out/gpu-bundle: all that a GPU machine without network needs
	$(PY) wheels/gpu_bundle.py --out '$(OUT)'

sbom: $(STAMP) ## write a bill of materials (CycloneDX) beside each wheel in DIST
	$(PY) wheels/sbom.py '$(DIST)'

bench: bench-cpu ## measure everything that this machine can, records below RESULTS
	@if $(PY) -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then \
	    $(MAKE) bench-gpu; \
	else \
	    echo "bench: this machine has no CUDA device: kernel time, host time and cold start were left out"; \
	fi

bench-gpu: $(STAMP) ## kernel time, host time and cold start on an NVIDIA GPU, beside the peer
	$(PY) bench/run.py $(BENCH_OPTIONS)

bench-cpu: $(STAMP) ## time builds, the simulator, import and load on this machine's CPU (BENCH_QUICK=1: less)
	@mkdir -p '$(RESULTS)'
	$(PY) bench/build_time.py '$(RESULTS)/cpu_build_time.jsonl' $(BENCH_ARGUMENTS)
	TILEWHEEL_ARTIFACTS='$(OUT)/bench/artifacts' $(PY) bench/simulator_speed.py '$(RESULTS)/cpu_simulator_speed.jsonl'
	$(if $(filter bench/results,$(RESULTS)),$(PY) bench/report.py && $(PY) bench/plot.py)

clean: ## remove everything that was built (OUT and DIST), keep .venv
	@for directory in '$(OUT)' '$(DIST)'; do \
		case '$(CURDIR)/' in "$$(realpath -m -- "$$directory" | sed 's,/$$,,')"/*) \
		echo "OUT, DIST: is '$$directory', must not hold the checkout"; exit 2;; esac; done
	rm -rf -- '$(OUT)' '$(DIST)'
