# The commands of this project. `make demo` demonstrates it, `make test` tests it.

CARGO ?= cargo
RAGENT := target/release/ragent
# Seconds for which `make fuzz` fuzzes each part of the store and of the agent.
FUZZ_SECONDS ?= 60
# Seconds for which `make chaos` runs.
CHAOS_SECONDS ?= 600
# Number of takeovers in the file of results at the end of `make takeovers`.
N ?= 1000
TAKEOVERS_FILE ?= target/takeovers-$(BY).csv
# The choice of the next leader in `make takeovers`: by voters, or by etcd.
BY ?= voters
# Number of simulated jobs with one endpoint in `make test-all`.
SEEDS ?= 30000
# The same through etcd.
ETCD_SEEDS ?= 10000
# The same for each kind of job that loses its coordinator.
TAKEOVER_SEEDS ?= 10000
# The same for jobs that keep checkpoints in memory.
MEMORY_SEEDS ?= 10000
# Number of workers that are killed while they save in memory, in `make test-all`.
KILLS ?= 200
# Number of made-up inputs for each part that reads from a network or a file, in `make test-all`.
CASES ?= 200000
# Number of real takeovers in `make test-all`.
TAKEOVERS ?= 20
# Number of runs of the process tests under load in `make test-all`.
REPEAT ?= 20
# The sample of `make mutants`: its seed, and the number of changes.
SEED ?= 1
COUNT ?= 200
# Number of tests at the same time: most of them wait for processes and leases, so there are more than processors.
export RUST_TEST_THREADS ?= $(shell cpus=$$(nproc); echo $$((cpus < 6 ? 6 : cpus)))

.PHONY: help build demo quick test test-all test-volume test-standbys chaos takeovers fuzz mutants test-gpu test-torch-versions test-torchrun test-frameworks check check-features advisories fix man docs pictures bench bench-recovery venv packages wheel deb rpm tar release test-packages

help:
	@echo 'make demo      build, prepare Python, and show a job that survives what is done to it'
	@echo 'make quick     what to run after each edit: formatting, unit tests, a short simulation'
	@echo 'make test      all tests but the long ones'
	@echo 'make test-all  the long ones: simulation at volume (test-volume), jobs with standbys (test-standbys), the other half of the tests with torch, repeated process tests'
	@echo 'make test-gpu  restarts of jobs that use the GPUs of this machine; skipped without one'
	@echo 'make test-torch-versions  collectives and checkpoints with torch 2.2 to 2.9, and that 2.1 is refused: 8 GB of disk'
	@echo 'make test-torchrun        `conformance` with torchrun itself instead of its record'
	@echo 'make test-frameworks      accelerate, lightning, transformers, deepspeed, and the recipes'
	@echo 'make chaos     everything happens at once to jobs of five nodes, for CHAOS_SECONDS'
	@echo 'make takeovers N=1000  lets another voter lead N times; continues where it was stopped; needs root'
	@echo 'make takeovers BY=etcd the same with etcd'
	@echo 'make fuzz      fuzzes the store and the agent; wants nightly Rust and cargo-fuzz'
	@echo 'make mutants   changes the state machines in 200 places, and prints the changes that no test notices; SEED chooses them'
	@echo 'make check     formatting, lints, documentation, licences; writes nothing'
	@echo 'make docs      checks the links of the pages, and builds them as a book where mdbook is installed'
	@echo 'make pictures  records the demo for the README, and takes the picture of the page'
	@echo 'make man       writes the man pages of packaging/man, and docs/flags.md'
	@echo 'make wheel deb rpm tar  builds packages, into target/packages'
	@echo 'make test-packages      builds all packages and tests them'
	@echo 'make release   builds all files of a release twice, and compares them'
	@echo 'make fix       formats, and applies what lints suggest'
	@echo 'make bench     figures, as ratios against the torch in .venv'
	@echo 'make bench-recovery  the time until broken jobs run again, compared with torchrun, ft_launcher and torchft'

build:
	$(CARGO) build --release --locked -p ragent

venv:
	@scripts/setup-venv.sh

packages:
	@scripts/setup-packages.sh

# Creates the Python environment during the build, because pip mostly waits for downloads. A release build takes twice as
# long, and would not make the demo faster: it mostly waits for Python to start.
demo:
	@scripts/setup-venv.sh & venv=$$!; $(CARGO) build --locked -p ragent || { kill $$venv; exit 1; }; wait $$venv
	.venv/bin/python examples/digits/demo.py --ragent target/debug/ragent

# Every `cargo test` selects `--workspace`: with `-p`, dependencies have other features, and are built again.
# For each edit: needs no Python environment, and starts no job. clippy checks all crates again, so only `make check` runs it.
quick:
	$(CARGO) fmt --all --check
	$(CARGO) test --workspace --locked --quiet --lib --test layers --test purity -- --skip gloo
	SEEDS=20 ETCD_SEEDS=20 NOTICE_SEEDS=8 HEALTH_SEEDS=5 TAKEOVER_SEEDS=4 MEMORY_SEEDS=4 STALL_SEEDS=2 \
		$(CARGO) test --workspace --locked --quiet --test simulation -- rules_hold --skip budget
	scripts/check-prose.py >/dev/null

test: venv packages
	scripts/run-tests.py

test-all: test-volume test-standbys
	scripts/repeat.sh $(REPEAT)

test-volume: venv packages
	SEEDS=$(SEEDS) ETCD_SEEDS=$(ETCD_SEEDS) TAKEOVER_SEEDS=$(TAKEOVER_SEEDS) MEMORY_SEEDS=$(MEMORY_SEEDS) \
		$(CARGO) test -p ragent-tests --profile simulation --locked --test simulation -- --include-ignored rules_hold noticed
	CASES=$(CASES) $(CARGO) test --workspace --locked --test fuzz -- made_up_inputs
	CASES=$(CASES) $(CARGO) test --workspace --locked --lib -- made_up_inputs
	$(CARGO) test --workspace --locked --test abuse -- --ignored --test-threads 2
	KILLS=$(KILLS) $(CARGO) test --workspace --locked --test memory -- kills_in_saves
	TAKEOVERS=$(TAKEOVERS) $(CARGO) test --workspace --locked --test partition -- --ignored --nocapture takeovers::
	$(CARGO) test --workspace --locked --test torch --test gpu -- --ignored
	.venv/bin/python -m pytest -q -m long tests/python
	scripts/run-tests.py 'PET_STANDBY=1 torch --include-ignored --skip stalls:: --skip survival::' 'PET_STANDBY=1 conformance both_worlds'

# Process tests whose workers are started from standbys. Those of them that take longest are in `make test-volume`.
test-standbys: venv packages
	scripts/run-tests.py 'PET_STANDBY=1 torch --include-ignored survival:: standbys::' 'WORKER=python chaos no_fault' \
		'WORKER=python single_node orphans:: stopping::' \
		'WORKER=python multi_node failure:: leaving:: loss:: members::' 'WORKER=python partition'

# Prints the reason for each test that is skipped.
test-gpu: venv
	$(CARGO) test --workspace --locked --test gpu -- --nocapture

chaos:
	CHAOS_SECONDS=$(CHAOS_SECONDS) $(CARGO) test --workspace --locked --test chaos -- --nocapture no_fault

# Takes about 4 s for each takeover.
takeovers:
	TAKEOVERS=$(N) TAKEOVERS_FILE=$(abspath $(TAKEOVERS_FILE)) \
		$(CARGO) test --release --workspace --locked --test partition -- --ignored --nocapture takeovers::by_$(BY)

fuzz:
	@scripts/fuzz.sh $(FUZZ_SECONDS)

mutants:
	@$(CARGO) mutants --version >/dev/null 2>&1 || \
	{ echo 'error: failed to run `cargo mutants`: it is not installed (cargo install --locked cargo-mutants)' >&2; exit 1; }
	scripts/mutants.py --seed $(SEED) --count $(COUNT)

# Versions of torch, and frameworks, that are tested in addition to those of `make test`.
TORCH_VERSIONS ?= 2.1 2.2 2.4 2.6 2.9
FRAMEWORKS ?= accelerate lightning transformers deepspeed

# An environment takes gigabytes: each is removed before the next is created. Torch 2.1 is refused, so it saves nothing in memory.
test-torch-versions:
	for version in $(TORCH_VERSIONS); do \
		scripts/setup-venv.sh torch-$$version && \
		TORCH_VERSIONS=$$version $(CARGO) test --workspace --locked --test torch -- older_torch && \
		{ [ $$version = 2.1 ] || .venvs/torch-$$version/bin/python -m pytest -m "" tests/python/test_memory*.py tests/python/test_checkpoints*.py tests/python/test_batches.py; } && \
		rm -rf .venvs/torch-$$version || exit 1; \
	done

# `make test` uses a record of torchrun. Here torchrun itself runs.
test-torchrun: venv
	RECORD=0 $(CARGO) test --workspace --locked --test conformance -- both_worlds torchrun_is_as_recorded

test-frameworks: venv
	scripts/setup-venv.sh frameworks
	scripts/setup-venv.sh operators
	FRAMEWORKS='$(FRAMEWORKS)' $(CARGO) test --workspace --locked --test torch -- frameworks
	FRAMEWORKS='$(FRAMEWORKS)' .venv/bin/python -m pytest -m "" tests/python/test_callbacks.py tests/python/test_recipes.py

# Each of them fills the same folder.
.NOTPARALLEL:
wheel deb rpm tar:
	@scripts/build-packages.sh $@

release:
	@scripts/release.sh

# The profile of the packages that `make test-packages` builds: their tests are about files, and `dist` takes minutes more.
PROFILE ?= release

test-packages: venv
	scripts/setup-packages.sh man-db rpm systemd
	PROFILE=$(PROFILE) scripts/build-packages.sh wheel deb rpm tar
	PROFILE=$(PROFILE) .venvs/packaging/bin/python -m pytest tests/packages

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --locked
	scripts/check-prose.py >/dev/null
	scripts/code-statistics.py --check
	scripts/check-links.py
	python3 -B benches/month.py --check >/dev/null
	@if $(CARGO) deny --version >/dev/null 2>&1; \
	then $(CARGO) deny --locked check bans licenses sources; \
	else echo 'skipped: cargo-deny is not installed (cargo install --locked cargo-deny)'; fi

# The libraries without their optional parts. The program has all of them.
check-features:
	$(CARGO) check --locked -p ragent-store --no-default-features
	$(CARGO) check --locked -p ragent --no-default-features

# Needs the network, for the database of RustSec.
advisories:
	$(CARGO) deny --locked check advisories

# The man pages in packaging/man and docs/flags.md, from the help.
man:
	$(CARGO) test --quiet --workspace --locked --lib -- --ignored man_pages_are_written flags_page_is_written

fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# The pages of docs/ as a book: target/book/index.html.
docs:
	scripts/check-links.py
	@if mdbook --version >/dev/null 2>&1; then mdbook build docs; \
	else echo 'skipped: mdbook is not installed (cargo install --locked mdbook)'; fi

# The recording in the README, and the picture of the page: minutes, on a machine that does nothing else; root.
pictures: build venv packages
	.venv/bin/python scripts/record-demo.py --ragent $(RAGENT) docs/demo.svg
	.venv/bin/python scripts/picture-page.py --ragent $(RAGENT) docs/page.png

bench: build venv
	$(CARGO) build --release --locked -p ragent-benches
	.venv/bin/python benches/run.py --ragent $(RAGENT)

bench-recovery: build venv
	scripts/setup-venv.sh nvrx
	scripts/setup-venv.sh torchft
	$(CARGO) build --release --locked -p ragent-benches
	.venv/bin/python benches/recovery.py --ragent $(RAGENT) --agents 64 1000
	.venv/bin/python benches/standby.py --ragent $(RAGENT) --times 4 --only kill
	.venv/bin/python benches/idle.py --ragent $(RAGENT)
