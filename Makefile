# Every target has a sentence for `make help`. Long steps say what they do.
.DEFAULT_GOAL := help
.PHONY: help demo setup test soak bench-balance bench-simulation check format generate images \
  cluster-deps cluster cluster-down e2e e2e-full clean

HTTP_PORT ?= 8080
GRPC_PORT ?= 8081
ADMIN_PORT ?= 8082
PYTHON ?= python3
# What needs no packages but Python 3.11 or newer.
PYTHON311 ?= $(firstword $(wildcard $(CURDIR)/.venv/bin/python) $(PYTHON))
TESTS ?=
DOCKERFILES := $(wildcard services/*/Dockerfile* operator/Dockerfile k8s-tests/*/Dockerfile)

help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Starts a real Triton, its loader and the gateway, classifies three photos, stays until Ctrl-C (ONCE=1: ends).
	@$(PYTHON) setup/environments.py demo
	@exec .venvs/demo/bin/python -m demo $(if $(ONCE),--once) \
	  --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --admin-port $(ADMIN_PORT)

setup: ## Sets up the environments for tests and development, from the lock file.
	@$(PYTHON) setup/environments.py test

test: check ## Sets up, checks and runs all the tests that this machine can carry (REQUIRE_ALL=1: all, or it fails).
	@REQUIRE_ALL=$(REQUIRE_ALL) .venv/bin/python -m pytest $(TESTS)

soak: setup ## Ten minutes of faults at random on local engines (SOAK_SEED=n: those again), calls that are quiet for three, ten of good, bad and abandoned traffic, and ten thousand photos.
	@REQUIRE_ALL=1 SOAK_S=$(or $(SOAK_S),600) SOAK_SEED=$(SOAK_SEED) .venv/bin/python -m pytest -s \
	  services/gateway/tests/many_engines/test_soak.py \
	  services/gateway/tests/many_engines/test_keepalive.py services/gateway/tests/test_mixed_soak.py

bench-balance: setup ## Measures how well requests are spread where one of three local engines is at half speed.
	@.venv/bin/python -m bench.balance

bench-simulation: setup ## Simulates 1,000 engines and 300 gateways, and draws the picture of docs/balancing.md.
	@.venv/bin/python -m bench.simulation --picture docs/pictures/balancing-simulation.svg

check: setup ## Runs the linters and the type checker.
	@.venv/bin/ruff check --quiet
	@.venv/bin/ruff format --check --quiet
	@.venv/bin/mypy
	@.venv/bin/mypy k8s-tests charts
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/hadolint $(DOCKERFILES)

format: setup ## Formats the code and mends what the linter can mend.
	@.venv/bin/ruff check --fix --quiet
	@.venv/bin/ruff format --quiet

generate: setup ## Makes the generated code of proto/, docs/settings.md and the chart's schema and README anew.
	@.venv/bin/python proto/generate.py
	@.venv/bin/python docs/generate.py
	@.venv/bin/python charts/generate.py

images: ## Builds the container images with buildah or docker (IMAGES="gateway …": only these).
	@$(PYTHON) setup/images.py $(IMAGES)

cluster-deps: ## Installs the Debian packages that the test cluster needs; the only target that installs any.
	@cd k8s-tests && $(PYTHON311) -m node deps

cluster: setup ## Brings up a real Kubernetes for tests on this machine, as root (NODES=1: one node).
	@cd k8s-tests && ../.venv/bin/python -m node up $(if $(NODES),--nodes $(NODES))

cluster-down: ## Takes the test cluster away, whatever is left of it.
	@cd k8s-tests && $(PYTHON311) -m node down

e2e: setup ## Runs the tests on a cluster: that of `make cluster`, or CONTEXT=name of yours.
	@REQUIRE_ALL=$(if $(CONTEXT),,1) .venv/bin/python -m pytest k8s-tests $(TESTS)

e2e-full: setup ## The tests of rolls on the test cluster, with every fault in every phase (ROLL_SEED=n: in that order).
	@REQUIRE_ALL=1 E2E_FULL=1 .venv/bin/python -m pytest k8s-tests $(or $(TESTS),-k rolls)

clean: ## Removes what was set up and built inside this folder.
	rm -rf .venv .venvs .run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
