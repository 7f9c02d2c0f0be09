# Everything from a fresh checkout, into .venv beside this file:
#
#   make demo       run a trained model and a wide network on this machine (MODEL=FILE.onnx: yours)
#   make test       what CI runs, on all cores: 10 minutes on two (JOBS=N: on N of them; SINCE=COMMIT:
#                   costly tests for what changed since then)
#   make test-all   every test that needs no GPU, in an hour on two cores; it also installs what some
#                   tests compare with: Gurobi, OpenVINO and PyTorch, some GB
#   make bench      the benchmarks
#   make busy       networks while other programs keep cores busy, half an hour (ONLY=REGEX)
#   make tables     EXACT.md and PLACE.md of the benchmarks anew, in hours (WITHIN=S: as far as S
#                   seconds lead, the next run goes on; ONLY=REGEX: these PART/GRAPH; BUDGET=S)
#   make gpu        the tests and benchmarks that need an NVIDIA GPU (ONLY=REGEX: these networks)
#   make lint       ruff, mypy, clang-format
#   make tidy       clang-tidy over the C++ core, in minutes (.clang-tidy says what it looks for)
#   make lines      how many lines the core and each part have
#   make docs       the site, into build/docs (make docs-links: also follow links to other sites)
#   make wheel      a wheel for this Python, into dist; one of 3.12 serves every later version
#   make runtime-wheel   a small wheel that only loads, runs and serves compiled files, into dist
#   make offline    wheels and an installer for a machine without a network, into build/offline
#                   (EXTRAS="dev gpu cublas": these extras too; FOR=python3.12; HAVE=PACKAGE,PACKAGE;
#                   SMALL=1: one file)
#   make setup      only what the others do first
#   make clean      remove .venv and everything built
#
# Needs: Linux on x86_64, Python 3.10 or later with venv and headers, a compiler for C and C++20,
# and pip's package index. CMake and Ninja come by pip.
#
# PYTHON=python3.12   the Python of a new .venv
# TVM=system          use the TVM with Relay that this Python has (.venv then sees its packages)
# TVM=/path           install that wheel or source folder by pip instead of making a wheel
# An existing .venv keeps the TVM it was made with, unless TVM says another: it is then made anew.

PYTHON ?= python3
CXX ?= g++
TVM ?=
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

NATIVE_SOURCES := CMakeLists.txt pyproject.toml $(shell find src -type f)

# Forget a .venv that holds another TVM than the one asked for now.
ifneq ($(TVM),)
ifneq ($(TVM),$(shell cat $(VENV)/.tvm 2>/dev/null))
$(shell rm -rf $(VENV))
endif
endif

.PHONY: demo test test-all bench busy tables gpu lint tidy lines docs docs-links wheel runtime-wheel \
        offline setup clean
.DELETE_ON_ERROR:

demo: setup
	$(BIN)/python -m benchmarks.demo $(MODEL)

# Tests of one file share what they compile, so they stay on one worker.
PARALLEL = --numprocesses $(JOBS) --dist loadgroup --no-loadscope-reorder

test: setup
	@echo "The tests take about 10 minutes on two cores; this run uses $(JOBS)."
	CI=1 $(BIN)/python -m pytest $(PARALLEL) $(if $(SINCE),--since "$(SINCE)")

test-all: setup $(VENV)/.stamp-peers
	ALL_CASES=1 $(BIN)/python -m pytest -m "" $(PARALLEL)

bench: setup
	$(BIN)/python -m benchmarks compile
	$(BIN)/python -m benchmarks run
	$(BIN)/python -m benchmarks place
	$(BIN)/python -m benchmarks exact
	$(BIN)/python -m benchmarks prediction

busy: setup $(VENV)/.stamp-bench
	$(BIN)/python -m benchmarks run --busy --only "$(ONLY)"

tables: setup $(VENV)/.stamp-saga
	$(BIN)/python -m benchmarks tables --only "$(ONLY)" --budget $(or $(BUDGET),10) \
	  $(if $(WITHIN),--within $(WITHIN))

# All that is to be known of a GPU, in some ten minutes: the figures are in GPU_JSON.
GPU_JSON ?= build/gpu.json

gpu: setup $(VENV)/.stamp-gpu
	nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv
	mkdir -p build; failed=0; \
	$(BIN)/python -m pytest -n0 -m gpu tests/gpu || failed=$$?; \
	$(BIN)/python -m benchmarks run --gpu --only "$(or $(ONLY),chain|resnet50|inception_v2)" \
	  --json $(GPU_JSON) || failed=$$?; \
	exit $$failed

lines:
	@$(PYTHON) tools/count_lines.py

lint: setup
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy python/heteroplace benchmarks zoo
	find src tests/cpp -name '*.h' -o -name '*.cc' | \
	  xargs "$$($(BIN)/python -c 'import clang_format as c; print(c.get_executable("clang-format"))')" \
	  --dry-run --Werror

# Six files a process: each reads its headers anew.
tidy: setup $(VENV)/.stamp-tidy
	headers=$$($(BIN)/python -c 'import nanobind, sysconfig; \
	  print("-isystem", sysconfig.get_path("include"), "-isystem", nanobind.include_dir())'); \
	find src -name '*.cc' | xargs -P $(JOBS) -n 6 sh -c '$(BIN)/clang-tidy --quiet "$$@" -- \
	  -std=c++20 -fPIC -I src '"$$headers" tidy

$(VENV)/.stamp-tidy: $(VENV)/.stamp-packages
	$(PIP) install clang-tidy==23.1.4
	touch $@

# What tests and benchmarks on GPUs need: NVML, and the libraries `cublas` and `cudnn` are about.
$(VENV)/.stamp-gpu: $(VENV)/.stamp-packages
	$(PIP) uninstall --yes nvidia-cudnn-cu12 2>/dev/null # its files may be those of PyTorch's cuDNN
	$(BIN)/python -c "$$REQUIREMENTS" gpu nvrtc cublas cudnn > $(VENV)/requirements-gpu.txt
	$(PIP) install -r $(VENV)/requirements-gpu.txt
	touch $@

# Whose own requirements are more than what is compared needs.
$(VENV)/.stamp-saga: $(VENV)/.stamp-packages
	$(PIP) install --no-deps anrg-saga
	$(PIP) install pydantic pysmt networkx
	touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-packages
	$(BIN)/python -c "$$REQUIREMENTS" bench > $(VENV)/requirements-bench.txt
	$(PIP) install -r $(VENV)/requirements-bench.txt
	touch $@

$(VENV)/.stamp-peers: $(VENV)/.stamp-saga
	$(BIN)/python -c "$$REQUIREMENTS" bench gpu gurobi torch > $(VENV)/requirements-peers.txt
	$(PIP) install -r $(VENV)/requirements-peers.txt torchvision transformers accelerate \
	  onnxruntime-ep-openvino iree-base-compiler iree-base-runtime
	rm -f $(VENV)/.stamp-gpu # PyTorch's cuDNN, for another CUDA, lies in the same folder
	touch $@

# Nothing is fetched but the packages of the extra `docs`, once. A warning is an error.
SPHINX = $(BIN)/python -m sphinx --jobs 2 --fail-on-warning --keep-going \
         -d build/doctrees -b

docs: setup $(VENV)/.stamp-docs
	$(SPHINX) html docs build/docs
	@echo "open build/docs/index.html"

docs-links: setup $(VENV)/.stamp-docs
	$(SPHINX) linkcheck docs build/docs-links

# For this Python (from 3.12 on: and later ones) and this machine's glibc; auditwheel names the
# oldest that will do.
wheel: setup $(VENV)/.stamp-docs
	rm -rf build/wheels && mkdir -p build/wheels dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) wheel --no-deps --no-build-isolation -w build/wheels .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair -w dist build/wheels/*.whl

# Of the wheel above; it needs neither TVM nor a solver.
runtime-wheel: wheel
	$(BIN)/python -m tools.runtime_wheel dist/heteroplace-*.whl

offline: setup
	mkdir -p build
	$(BIN)/python -c "$$REQUIREMENTS" relay $(EXTRAS) > build/offline.txt
	$(BIN)/python -m tools.offline.pack build/offline.txt build/offline $(if $(FOR),--python $(FOR)) \
	  $(if $(HAVE),--have $(HAVE)) $(if $(SMALL),--small)

clean:
	rm -rf $(VENV) build dist docs/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis .pkl_memoize_py3
	find python benchmarks zoo tests -name __pycache__ -prune -exec rm -rf {} +

# The core is compiled while pip, which takes one processor, installs the packages.
setup: $(VENV)/.stamp-deps
	@$(MAKE) --silent --jobs=2 --output-sync=target $(VENV)/.stamp-native $(VENV)/.stamp-packages

# One line for each thing that only the system's package manager can install.
define REQUIRE_SYSTEM
need() { echo "$$1" >&2; exit 1; }
command -v $(PYTHON) >/dev/null || need "$(PYTHON) not found: sudo apt-get install python3"
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  need "Python 3.10 or later is needed, $(PYTHON) is older: say for example PYTHON=python3.12"
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null ||
  need "$(PYTHON) cannot make virtual environments: sudo apt-get install python3-venv"
headers=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')
test -f "$$headers/Python.h" ||
  need "$$headers/Python.h not found: sudo apt-get install python3-dev"
printf '#include <atomic>\n#ifndef __cpp_lib_atomic_wait\n#error\n#endif\n' |
  $(CXX) -std=c++20 -fsyntax-only -x c++ - 2>/dev/null ||
  need "no compiler for C++20 (looked for $(CXX), gcc 11 or later): sudo apt-get install g++"
endef
export REQUIRE_SYSTEM

$(VENV)/.stamp-venv:
	@sh -c "$$REQUIRE_SYSTEM"
	rm -rf $(VENV)
	$(PYTHON) -m venv $(if $(filter system,$(TVM)),--system-site-packages) $(VENV)
	echo '$(or $(TVM),wheel)' > $(VENV)/.tvm
ifeq ($(TVM),system)
	# A venv made from a venv sees only the packages of the Python below both.
	$(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/system.pth"
endif
	$(PIP) install "pip>=23"
	touch $@

# The requirements of [build-system] in pyproject.toml, and the tools that they call.
$(VENV)/.stamp-deps: $(VENV)/.stamp-venv
	$(PIP) install "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	touch $@

# Run again when the C++ sources, CMakeLists.txt or pyproject.toml change; Python files are read
# from the tree, so a change there needs nothing.
$(VENV)/.stamp-native: $(VENV)/.stamp-deps $(NATIVE_SOURCES)
	MAKEFLAGS= PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --no-build-isolation --no-deps -e .
	touch $@

$(VENV)/.stamp-tvm: $(VENV)/.stamp-deps python/heteroplace/tvm_wheel.py \
                    python/heteroplace/tvm_interface.py $(wildcard python/heteroplace/data/*)
	@case "$$(cat $(VENV)/.tvm)" in \
	  wheel) $(BIN)/python python/heteroplace/tvm_wheel.py install ;; \
	  system) ;; \
	  *) $(PIP) install "$$(cat $(VENV)/.tvm)" ;; \
	esac
	$(BIN)/python python/heteroplace/tvm_wheel.py check
	touch $@

# What the package and the extras that are named need, a line each.
define REQUIREMENTS
import sys
try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
named = [line for name in sys.argv[1:] for line in extras[name]]
print(*project["dependencies"], *named, sep="\n")
endef
export REQUIREMENTS

$(VENV)/.stamp-packages: $(VENV)/.stamp-tvm pyproject.toml
	$(BIN)/python -c "$$REQUIREMENTS" relay dev > $(VENV)/requirements.txt
	$(PIP) install -r $(VENV)/requirements.txt
	touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-packages
	$(BIN)/python -c "$$REQUIREMENTS" docs > $(VENV)/requirements-docs.txt
	$(PIP) install -r $(VENV)/requirements-docs.txt
	touch $@
