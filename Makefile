# Everything a fresh machine needs: Python 3.11 with pip. `make demo` and `make test` set up by themselves.
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/koopsim
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
EVERYTHING := -e '.[tune,data,storage,export,lightning,tensorboard,mlflow,wandb,docs,notebooks,dist]' pandas 'moto[server]'

.PHONY: setup demo test test-all pythons processors hostile mutants test-gpu lint bench readme zoo docs notebooks dist release clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -d .venv || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[test,tune]'
	@touch $@

demo: export OMP_NUM_THREADS = 1  # the models are small: a second thread costs more than it brings
demo: setup
	@rm -rf demo
	$(RUN) reproduce all --scale smoke --out demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 -rs

test-all: setup hostile
	$(PIP) $(EVERYTHING)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -rs --only-gpu-skips
	$(MAKE) pythons

pythons:  # the fast tests on each other Python from 3.11 to 3.13 that this machine has and PyTorch installs on
	$(PYTHON) tools/pythons.py

processors: setup  # the fast tests by the kernels of five kinds of processor; 25 minutes on two cores
	$(BIN)/python tools/processors.py

hostile: setup  # mutated files, kills, extremes, other people's folders; seeded, ten minutes at most on two idle cores
	OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/campaign.py --out results/hostile.json

mutants: setup  # do the tests notice? a seeded mutation run over the library; half an hour on two idle cores
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants/hunt.py --out results/mutants.json

test-gpu:  # on a machine with a CUDA device and PyTorch for it; sets up nothing
	PYTHONPATH=src $(PYTHON) tools/cuda_tests.py

lint: setup
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/pyright

bench: setup
	$(RUN) bench --quick --out demo/bench
	$(BIN)/python benchmarks/speed.py smoke --repeats 1
	$(BIN)/python benchmarks/spectral_edmd.py

readme: setup
	$(BIN)/python tools/readme.py

docs:  # the site, into site/; needs neither the tests' packages nor, once built, a network
	@test -d .venv || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[docs]'
	$(BIN)/python tools/site.py

notebooks: setup  # run again, and written with what they showed
	$(PIP) -e '.[notebooks]'
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py

dist: setup  # the wheel, the sdist and the zoo's wheel, into dist/
	$(PIP) -e '.[dist]'
	$(BIN)/python -m build --outdir dist . && $(BIN)/python -m build --outdir dist --wheel packages/zoo

release: setup  # built, and tried as a stranger would; results/release.json
	$(PIP) $(EVERYTHING)
	$(BIN)/python tools/release.py

zoo: setup
	$(BIN)/python tools/zoo.py

clean:
	rm -rf .venv demo runs dist site
