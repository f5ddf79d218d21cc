# Two commands do everything on a fresh machine: make place, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without compiling: a module is compiled when it is first imported, and most never are.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt
MODEL := artifacts/resnet50.xml
BUDGET ?= 45s
TEST := $(BIN)/python -m pytest -n 3 --dist worksteal --max-worker-restart 0
GPU_VENV := .venv-gpu
SOFTWARE_GPU := tests/software_gpu
OPTIMUM_VENV := .venv-optimum
INTEGRATIONS := tests/integrations
SUPPLY_VENV := .venv-supply

.PHONY: place test test-docs test-slow test-gpu gpu test-optimum hunt docs schemas sbom licences audit benchmarks lint types pyright check clean

place: $(VENV)/.installed $(MODEL)
	$(BIN)/hsdag place $(MODEL) --partition-cpu 2 --budget $(BUDGET) -o artifacts/resnet50.placement.json

test: $(VENV)/.development
	$(TEST) -m "not slow"

# Every command and program of the documentation and the README.
test-docs: $(VENV)/.development
	$(TEST) tests/docs

# The tests that take seconds each; only the two together test everything.
test-slow: $(VENV)/.development
	$(TEST) -m slow

# What needs OpenVINO's GPU plugin, on two software GPUs; docs/architecture.md explains them.
test-gpu: $(VENV)/.development gpu
	$(SOFTWARE_GPU)/run $(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 $(SOFTWARE_GPU)

gpu: $(GPU_VENV)/lib/software_gpu.so

$(GPU_VENV)/.installed: $(SOFTWARE_GPU)/requirements.txt
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet -r $<
	cp $(GPU_VENV)/lib/libintelocl.so $(GPU_VENV)/lib/libintelocl_second.so
	touch $@

$(GPU_VENV)/lib/software_gpu.so: $(SOFTWARE_GPU)/layer.c $(GPU_VENV)/.installed
	$(CC) -std=gnu11 -O2 -Wall -Wextra -shared -fPIC -pthread -o $@ $<

# What needs optimum-intel, in an environment that lies over the one for development.
test-optimum: $(OPTIMUM_VENV)/.installed
	PYTHONPATH=. HF_HUB_OFFLINE=1 $(OPTIMUM_VENV)/bin/python -m pytest $(INTEGRATIONS)

$(OPTIMUM_VENV)/.installed: $(INTEGRATIONS)/requirements.txt $(VENV)/.development
	$(PYTHON) -m venv $(OPTIMUM_VENV)
	$(OPTIMUM_VENV)/bin/python -m pip install --quiet --no-deps -r $<
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(OPTIMUM_VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/development.pth"
	touch $@

# The documentation as a site, in artifacts/site; no page of it fetches anything from the network.
docs: schemas licences
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python .ci/check_site.py

# JSON schemas of the files that hsdag writes, which are not committed.
schemas: $(VENV)/.development
	$(BIN)/python -m hsdag.schemas docs/schemas

# What hsdag needs: as a CycloneDX document in artifacts/, as the page of licences, and whether a version is vulnerable.
sbom: $(VENV)/.development $(SUPPLY_VENV)/.installed
	$(BIN)/python .ci/sbom.py $(SUPPLY_VENV)/bin/python

licences: $(VENV)/.development
	$(BIN)/python .ci/licences.py

audit: $(VENV)/.development
	-$(MAKE) --no-print-directory $(SUPPLY_VENV)/.installed
	$(BIN)/python .ci/audit.py $(SUPPLY_VENV)/bin/pip-audit

$(SUPPLY_VENV)/.installed: .ci/supply_requirements.txt
	$(PYTHON) -m venv $(SUPPLY_VENV)
	$(SUPPLY_VENV)/bin/python -m pip install --quiet -r $<
	touch $@

# The tests with random examples that no run has seen: new defects turn up here, and never in somebody else's change.
hunt: $(VENV)/.development
	$(TEST) --hypothesis-profile new_examples

# Every benchmark with small settings: whether it still runs and prints its figure.
benchmarks: $(VENV)/.development
	$(BIN)/python benchmarks/run_all.py

lint: $(VENV)/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.development
	$(BIN)/mypy

# Whether pyright, which many editors run, sees the folders at the top as parts of the package.
pyright: $(VENV)/.development $(SUPPLY_VENV)/.installed
	$(BIN)/python .ci/check_pyright.py $(SUPPLY_VENV)/bin/basedpyright

check: lint types test test-slow

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e ".[onnx,report]"
	touch $@

$(VENV)/.development: $(VENV)/.installed
	$(INSTALL) -e ".[dev]"
	touch $@

$(MODEL): | $(VENV)/.installed
	mkdir -p artifacts
	$(BIN)/hsdag models build resnet50 -o $(MODEL)

clean:
	rm -rf $(VENV) $(OPTIMUM_VENV) $(GPU_VENV) $(SUPPLY_VENV) artifacts build dist *.egg-info
