# Everything runs in .venv, which the first target that needs it sets up. PYTHON names the
# interpreter that makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find cpp cmake third_party bridge/catalogue bridge/lang -type f -not -name "*.pyc" 2>/dev/null) CMakeLists.txt \
  pyproject.toml
LOCKS := requirements/lock.txt requirements/lock-cuda.txt

# What is imported stays compiled: torch takes seconds, and tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

# The Python suite on all cores; a worker and its frameworks take a gigabyte.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

.PHONY: all demo test check lint check-cpp check-cuda check-package check-faults exhaustive versions \
  wheels try-wheels soak bench scaling site show-generated lock clean
all: $(VENV)/.nodes

# The lock names all that is needed, so that pip has nothing to resolve; torch is the machine's build.
$(VENV)/.installed: $(LOCKS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --no-deps --require-hashes -r requirements/lock.txt
	$(BIN)/pip install --quiet --no-compile --no-deps $$(grep ^torch== requirements/frameworks.txt)
	@# A torch that is built with CUDA needs gigabytes more.
	if $(BIN)/python -c 'import importlib.metadata as m, sys; \
	    sys.exit(not any("nvidia" in name for name in m.requires("torch")))'; then \
	  $(BIN)/pip install --quiet --no-compile --no-deps --require-hashes -r requirements/lock-cuda.txt; fi
	touch $@

# Editable, so that Python edits need no step; C++ edits, and those of the sources of ahead-of-time programs,
# make this again, those that come while it runs too. The table of operations writes two headers.
$(VENV)/.built: $(VENV)/.installed $(SOURCES)
	$(BIN)/python cmake/write_operations.py
	touch $@.begun
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --no-deps --no-build-isolation \
	  --config-settings=cmake.define.BRIDGE_WERROR=$(if $(CI),ON,OFF) -e .
	mv $@.begun $@

# Nodes of torch's graph. Calls have them compiled at their first gradient otherwise, and go on where
# that fails.
$(VENV)/.nodes: $(VENV)/.built
	-BRIDGE_CACHE_DIR=build/compiled $(BIN)/python -c 'from bridge.torch._adapter import nodes; nodes.load()'
	touch $@

# The main job: a real transformer through both frameworks, then parity, speed and a report.
demo: $(VENV)/.nodes
	$(BIN)/python -m bridge demo

# All that CI runs, the Python suite last so that its closing line ends the output: of each test at
# most 2 cases, others for each commit. Two checks at once, as each of them waits for one process at
# times; what they say does not mix.
test: $(VENV)/.built
	$(MAKE) --no-print-directory -j2 --output-sync=target check-cpp $(VENV)/.nodes \
	  check-cuda lint check-faults check-package
	$(PYTEST) --sample 2

# For the inner loop, minutes once it is built: C++ under sanitizers, and of every second Python test
# one case, others for each commit. Without planted faults, and without what starts processes or takes long.
check: lint $(VENV)/.nodes
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check_cpp.sh --quick
	$(PYTEST) --sample 1 -m "not slow and not processes and not long" --ignore tests/distributed --ignore tests/cli

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror

# The C++ checks, then every CUDA kernel in the host emulator, both under ASan and UBSan.
check-cpp: $(VENV)/.built
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check_cpp.sh

# nvcc's own warnings, registers, spills and instruction counts, for sm_90; says so where there is no
# nvcc.
check-cuda: $(VENV)/.installed
	$(BIN)/python scripts/check_cubin.py --if-available --archs 90

# The sdist holds what a build needs and the wheel imports where no CUDA driver is.
check-package: $(VENV)/.built
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check_package.sh

# Faults planted in a copy of the sources, one at a time: the suite must see each. One of them here,
# others for each commit; all in `make exhaustive`.
check-faults: $(VENV)/.nodes
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/check_faults.py --sample 1

# Hours: every float32 there is, through every form and derivative; all planted faults and all cases of
# what is sampled elsewhere; the originals' largest cases. A part that fails does not end it: a line
# for each is in build/exhaustive/summary.txt. PARTS names some of scripts/exhaustive.py --list.
exhaustive: $(VENV)/.nodes
	$(BIN)/python scripts/exhaustive.py $(if $(PARTS),--only $(PARTS))

# The sampled suite under the oldest and the newest versions of both frameworks, in environments of
# their own; gigabytes, and most of an hour each. PAIR is one of them: oldest, newest.
versions: $(VENV)/.installed
	$(BIN)/python scripts/check_versions.py $(PAIR)

# Wheels for manylinux_2_28 in build/wheels/dist: CPython 3.11, and 3.12 and newer, for x86-64 and
# aarch64. Most of an hour. CUDA=1 builds bridge-ops-cuda13 instead, with nvcc.
wheels: $(VENV)/.installed
	$(BIN)/python scripts/build_wheels.py $(if $(CUDA),--cuda)

# Installs them where there is no compiler, with no framework, one, and both, in gigabytes of
# environments, and builds the source archive. ENVIRONMENTS names some of them.
try-wheels: $(VENV)/.installed
	$(BIN)/python scripts/try_wheels.py $(ENVIRONMENTS)

# The tests with several processes, twenty times or TIMES: a flake anywhere ends it.
TIMES ?= 20
soak: $(VENV)/.nodes
	for i in $$(seq $(TIMES)); do $(BIN)/python -m pytest -q tests/distributed || exit 1; done

bench: $(VENV)/.nodes
	$(BIN)/python -m bridge bench --ops bias_gelu softmax bias_dropout_add border \
	  --json docs/benchmarks/cpu.json --plot docs/benchmarks/cpu.svg
	$(BIN)/python -m bridge bench --ops catalogue linear_cross_entropy declared \
	  --json docs/benchmarks/cpu-catalogue.json

# Minutes, on a machine that does nothing else; then writes the tables of docs/scaling.md.
scaling: $(VENV)/.nodes
	$(BIN)/python -m bridge scaling --json docs/benchmarks/scaling-cpu.json --plot docs/benchmarks/scaling-cpu.svg
	$(BIN)/python scripts/quote_figures.py

# The pages of docs with a reference of every public name, into build/site, by packages of their own. A
# dead link or a missing page ends it, and so does a page that would fetch a script or a style elsewhere.
SITE := build/site-environment
$(SITE)/.installed: requirements/site.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/pip install --quiet --no-compile --no-deps -r requirements/site.txt
	touch $@

site: $(SITE)/.installed
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict
	! grep -rnE --include='*.html' '(<link|<script|<img)[^>]*(src|href)="?(https?:)?//' build/site

# The C++ of the programs that a build compiles.
show-generated: $(VENV)/.installed
	@$(BIN)/python cmake/write_ahead_of_time.py build/ahead_of_time v4 v3
	@cat build/ahead_of_time/program_[0-9]*.cpp

# After an edit of the short files in requirements/.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv==0.13.9
	build/lock/bin/python scripts/lock_requirements.py build/lock/bin/uv

clean:
	rm -rf $(VENV) build out
