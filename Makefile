# The commands of the README. `make help` lists them.
PYTHON := .venv/bin/python
WORKDIR ?= runs/emoji
CONFIG ?= configs/emoji.py:clip
WORKERS ?= 2

.PHONY: help env env-plan parity train experiments test test-slow test-slurm lint clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env:  ## create .venv with pinned dependencies (does nothing when it is up to date)
	@sh launch/environment.sh

env-plan:  ## add the compilers that `contrastive plan` uses: libtpu, CUDA (1.3 GB)
	@sh launch/environment.sh plan

parity: env  ## create .venv-parity: PyTorch and the libraries that this one is compared with
	@sh launch/parity_environment.sh

train: env  ## train the emoji model (about 4 minutes), evaluate it, write the report; resumes; ARGS=... passes more
	@JAX_PLATFORMS=$${JAX_PLATFORMS:-cpu} $(PYTHON) -m contrastive.cli train --config=$(CONFIG) --workdir=$(WORKDIR) $(ARGS)

experiments: env  ## all experiments in short form, each checked, one page (runs/experiments); resumes; ARGS=--full: all seeds
	@JAX_PLATFORMS=$${JAX_PLATFORMS:-cpu} $(PYTHON) -m experiments $(ARGS)

# Without the last optimisations of programs for the CPU (LLVM's) two files that compile much take
# half the processor's time. `make test-slow` and pytest by itself leave them on, as training does.
test: env-plan  ## run the test suite; ARGS="-k name" selects
	@XLA_FLAGS="$$XLA_FLAGS --xla_backend_optimization_level=0" $(PYTHON) -m pytest -n $(WORKERS) $(ARGS)

test-slow: env-plan  ## the full cross products and full-size programs
	@$(PYTHON) -m pytest -n $(WORKERS) -m slow $(ARGS)

test-slurm: env  ## launch on a real SLURM (root; apt-get install -y --no-install-recommends slurm-wlm)
	@$(PYTHON) -m pytest -n 0 -m slow tests/slurm $(ARGS)

lint: env  ## formatting, lint and types
	@$(PYTHON) -m ruff format --check . && $(PYTHON) -m ruff check . && $(PYTHON) -m pyright

clean:  ## remove the environments (runs are kept)
	rm -rf .venv .venv-parity
