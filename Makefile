# Everything a user or a developer needs.  `make demo` and `make test` do all their set-up themselves.
# What is built lies outside the checkout (XDG cache), keyed by version; what runs is stopped by `make demo-down`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
CRDS := crds/vllmdeployments.vllm-operator.io.yaml helm/vllm-operator/templates/crds/vllmdeployments.vllm-operator.io.yaml
RUN := PYTHONPATH=operator:. $(PY)
export PYTHONDONTWRITEBYTECODE := 1
# A company's or a mirror's certificate authority, where the system knows one that Python's own list does not.
ifneq (,$(wildcard /etc/ssl/certs/ca-certificates.crt))
export PIP_CERT ?= /etc/ssl/certs/ca-certificates.crt
export SSL_CERT_FILE ?= /etc/ssl/certs/ca-certificates.crt
endif

# The test bed builds Helm; the tests of the chart use it.
export HELM ?= $(or $(XDG_STATE_HOME),$(HOME)/.local/state)/vllm-operator/testbed/bin/helm

.PHONY: help
help: ## Say what each target does.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/.complete: requirements-dev.lock
	@echo "[set-up] Python tools into $(VENV)"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; }
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

.PHONY: install
install: $(VENV)/.complete ## Make the Python environment of the developer tools.

# ---- for users -------------------------------------------------------------------------------------------------

.PHONY: demo
demo: install ## From an empty machine to a served model: test bed, operator, SmolLM2 over two pods.
	@$(RUN) -m tests.demo up

.PHONY: demo-down
demo-down: install ## Stop the demo and its cluster; leave nothing behind.
	@$(RUN) -m tests.testbed down

.PHONY: testbed-up
testbed-up: install ## Start a Kubernetes with fake GPUs and KubeRay on this machine.
	@$(RUN) -m tests.testbed up

.PHONY: testbed-down
testbed-down: install ## Stop it.
	@$(RUN) -m tests.testbed down

.PHONY: testbed-env
testbed-env: $(VENV)/.complete ## Print what a shell needs: eval "$(make -s testbed-env)".
	@$(RUN) -m tests.testbed env

# ---- for developers --------------------------------------------------------------------------------------------

.PHONY: test
test: verify testbed-build test-unit test-cluster ## All checks and tests but the extended ones, on a test bed that it starts and stops itself.

.PHONY: testbed-build
testbed-build: install ## Build or find everything of the test bed; about 15 minutes with an empty cache.
	@$(RUN) -m tests.testbed build
	@$(RUN) -m tests.testbed runtime > /dev/null

.PHONY: verify
verify: install ## Formatting, lint, types, architecture, and that generated files are up to date.
	@$(VENV)/bin/ruff format --check --quiet operator tests
	@$(VENV)/bin/ruff check --quiet operator tests
	@MYPYPATH=operator $(VENV)/bin/mypy -p vllm_operator -p vllm_bootstrap
	@MYPYPATH=operator $(VENV)/bin/mypy -p tests.testbed
	@PYTHONPATH=operator $(VENV)/bin/lint-imports --no-logo
	@$(RUN) -m vllm_operator.api.crd --check $(CRDS)

.PHONY: test-unit
test-unit: install ## The fast tests: no cluster needed.
	@$(RUN) -m pytest tests/unit

.PHONY: test-cluster
test-cluster: testbed-build ## The tests on the test bed: contracts, cluster, engines.
	@$(RUN) -m pytest -m "not extended" tests/contract tests/cluster

.PHONY: test-extended
test-extended: testbed-build ## Further shapes on the test bed: larger engines, other models, profiling; before a release.
	@$(RUN) -m pytest -m extended tests/cluster

.PHONY: bench-start
bench-start: install ## Measure apply to Ready beside a start by hand; writes docs/benchmarks.json.
	@$(RUN) -m tests.bench.start

.PHONY: bench-planning
bench-planning: install ## Compare planned memory with public recipes, and time a plan; writes docs/benchmarks.json.
	@$(RUN) -m tests.bench.planning

.PHONY: generate
generate: install ## Write the CRD from the models, into crds/ and the chart.
	@$(RUN) -m vllm_operator.api.crd $(CRDS)

.PHONY: format
format: install ## Format the code.
	@$(VENV)/bin/ruff format operator tests
	@$(VENV)/bin/ruff check --fix --quiet operator tests

.PHONY: lock
lock: install ## Resolve the lock files anew.
	@$(RUN) -m tests.lock

.PHONY: clean
clean: ## Remove what was made in the checkout (the cache stays).
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
