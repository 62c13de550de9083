# Two commands on a fresh machine: `make repro` and `make test`. Each sets up .venv first, and only when the pins changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup repro test check bench-env serving-env gpu-check lock clean

RUN := PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHONDONTWRITEBYTECODE=

help: ## say what each command does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: ## create .venv and install the pinned dependencies, if they changed
	@scripts/setup dev

repro: setup ## run the pipeline on the embedded example, to a released bundle, and print the summary
	@echo "== dvc repro: trained model to released bundle (only what changed runs)"
	@status=0; $(RUN) dvc repro || status=$$?; $(RUN) qwarm stage summary || true; exit $$status

test: setup ## run the tests
	@echo "== pytest"
	@$(RUN) python -m pytest

check: setup ## lint, format and types
	@echo "== ruff and mypy"
	@$(RUN) ruff check . && $(RUN) ruff format --check . && $(RUN) mypy

bench-env: ## install what only benchmarks need
	@scripts/setup dev,bench

gpu-check: setup ## build, run, count and time every GPU target that this machine has
	@$(RUN) python benchmarks/gpu_check.py --json build/bench/gpu.json

serving-env: ## a real Triton server and Kubernetes' schemas, in an environment of their own: for tests that are skipped without it
	@python3.11 -m venv .serving && .serving/bin/pip install -q nvidia-pytriton==0.7.0 kubernetes-validate==1.37.0

lock: setup ## write constraints.txt, the versions of everything that the pins pull in
	@scripts/lock

clean: ## remove outputs of the pipeline (not .venv, not DVC's cache)
	rm -rf build evidence platforms
