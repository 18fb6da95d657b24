# `make` lists what there is. Everything is built in .build: the folder target/ is a crate.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Steps share the processors through Cargo already; in order, their output can be read.
.NOTPARALLEL:

export CARGO_TARGET_DIR ?= $(CURDIR)/.build
# A toolchain that was installed a moment ago, and the tools that `make test` builds for itself.
export PATH := $(CARGO_TARGET_DIR)/tools/bin:$(PATH):$(HOME)/.cargo/bin

# What lets Cargo build again quickly takes half the time of a first build, so that a first build goes without it.
ifeq ($(wildcard $(CARGO_TARGET_DIR)/debug/incremental),)
test: export CARGO_INCREMENTAL ?= 0
endif

# Where `make install` puts what: tests/scripts/make-install.sh.
export DESTDIR PREFIX SYSCONFDIR SYSTEMDDIR SYSUSERSDIR TMPFILESDIR MANDIR
# How long `make fuzz` spends on each target.
SECONDS ?= 30
# A test that hangs must fail the run, not stop it.
MINUTES_MAX ?= 20

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: ## The main job on this machine: a remote disk, mounted, used, compared and measured
	@tests/scripts/demo.sh

# Checks that could not run, a line each: what `make test` has to say at its end.
NOT_RUN := $(CARGO_TARGET_DIR)/not-run

.PHONY: test
test: export RINGFAB_NOT_RUN := $(NOT_RUN)
test: ## Installs what is missing and runs every test
	@tests/scripts/install.sh build test ceph fuzz kernel
	@mkdir -p $(CARGO_TARGET_DIR) && : >$(NOT_RUN)
	@RINGFAB_REQUIRE_TOOLS=1 tests/scripts/steps.sh lint deny advisories sbom scripts workspace-tests \
	    end-to-end boot-test container-test kernel-test "fuzz SECONDS=5"
	@if [ ! -s $(NOT_RUN) ]; then echo "==> All tests passed"; \
	else echo "==> All tests that could run passed. NOT RUN:"; sed 's/^/    /' $(NOT_RUN); fi

# No virtual machine, nothing installed. What is missing is not run, and the end says so.
.PHONY: test-fast
test-fast: ## Every test that needs no virtual machine, with what is installed (under 4 minutes after a build)
	@$(MAKE) --no-print-directory lint scripts workspace-tests fast-end-to-end

.PHONY: check
check: lint ## The quick part: format, lints, unit tests (under 1 minute after a build)
	tests/scripts/tests.sh units

.PHONY: lint
lint: ## Format and lints, warnings are errors
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: deny
deny: ## Licences, bans and sources of the dependencies (needs cargo-deny)
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check licenses bans sources; \
	else tests/scripts/not-run.sh "the check of licences and sources: cargo-deny is not installed"; fi

# The database is on the network; without it nothing is known of what is new.
.PHONY: advisories
advisories: ## Known vulnerabilities of the dependencies (needs cargo-deny and RustSec's database on GitHub)
	@if ! cargo deny --version >/dev/null 2>&1; then \
	tests/scripts/not-run.sh "the check for known vulnerabilities: cargo-deny is not installed"; \
	elif timeout 120 cargo deny --locked fetch db >/dev/null 2>&1; then cargo deny --locked check advisories; \
	else tests/scripts/not-run.sh "the check for known vulnerabilities: RustSec's database cannot be had"; fi

.PHONY: sbom
sbom: ## The parts of each program (CycloneDX) in .build/sbom, compared with what Cargo builds
	@tests/scripts/install.sh sbom
	@if cargo cyclonedx --version >/dev/null 2>&1; then tests/scripts/sbom.sh $(CARGO_TARGET_DIR)/sbom; \
	else tests/scripts/not-run.sh "the list of parts: cargo-cyclonedx is not installed"; fi

.PHONY: scripts
scripts: ## The shell scripts (needs shellcheck)
	@tests/scripts/lib-test.sh
	@if command -v shellcheck >/dev/null; then \
	shellcheck -x tests/scripts/*.sh tests/boot/*.sh tests/kernel/*.sh tests/kernel/guest/*.sh .ci/run \
	    systemd/debian/*/*; cd tests/boot/guest && shellcheck -x *.sh; \
	else tests/scripts/not-run.sh "the check of the scripts: shellcheck is not installed"; fi

.PHONY: workspace-tests
workspace-tests: ## Every test of every crate
	cargo build --locked --workspace --bins --tests --example rdma_reach
	timeout --foreground $(MINUTES_MAX)m tests/scripts/tests.sh

# What waits for a time, instead of for what it needs, fails here. Half an hour a round.
.PHONY: test-busy
test-busy: ## The workspace's and the end-to-end tests, three times beside a load that takes every processor
	@tests/scripts/install.sh build test
	tests/scripts/busy.sh $(ROUNDS)

# The packages and kinds of targets of tests.sh, here and below: with others, Cargo would choose other features for what
# they share and build all of it again.
.PHONY: end-to-end
end-to-end: ## fio, libnbd, QEMU and the demonstration
	cargo build --locked --workspace --bins --tests
	RINGFAB_BIN_DIR=$(CARGO_TARGET_DIR)/debug timeout --foreground $(MINUTES_MAX)m tests/scripts/e2e.sh

.PHONY: fast-end-to-end
fast-end-to-end:
	@missing=$$(tests/scripts/install.sh --missing end_to_end); if [ -z "$$missing" ]; then \
	    RINGFAB_BIN_DIR=$(CARGO_TARGET_DIR)/debug timeout --foreground $(MINUTES_MAX)m tests/scripts/e2e.sh; \
	else tests/scripts/not-run.sh "fio, libnbd, QEMU and the demonstration: not installed: $$missing"; fi

.PHONY: arm64
arm64: ## Compiles everything for arm64, and runs tests and the service there, emulated (about 6 minutes)
	@tests/scripts/install.sh build arm64
	@tests/kernel/arm64.sh || [ $$? -eq 77 ]

# The emulated processor is slow: the programs are those that are installed, which need a fraction of its time. Exit
# status 77 says that there is no virtual machine to be had, which was said and noted then; it is no pass.
.PHONY: kernel-test
kernel-test: release ## Both ends against a stock Linux kernel in a virtual machine (about 15 minutes after a build)
	@tests/scripts/install.sh build kernel
	cargo build --locked --workspace --bins --tests --example rdma_reach --example rdma_exchange \
	    --example tls_exchange
	@RINGFAB_BIN_DIR=$(CARGO_TARGET_DIR)/release RINGFAB_EXAMPLES_DIR=$(CARGO_TARGET_DIR)/debug/examples \
	    tests/kernel/run.sh || [ $$? -eq 77 ]

.PHONY: kernel-ratio
kernel-ratio: release ## The kernel's host on our target and on the kernel's, in turns, in a virtual machine
	@tests/scripts/install.sh build kernel
	RINGFAB_BIN_DIR=$(CARGO_TARGET_DIR)/release tests/kernel/ratio.sh

.PHONY: instructions
instructions: ## What the target's core executes for a command, without system calls, by part (5 minutes)
	@tests/scripts/install.sh build count
	tests/scripts/instructions.sh

.PHONY: kernel-instructions
kernel-instructions: release ## The same over an RDMA device, in a virtual machine (10 minutes)
	@tests/scripts/install.sh build count kernel
	RINGFAB_BIN_DIR=$(CARGO_TARGET_DIR)/release tests/kernel/instructions.sh

.PHONY: fuzz
fuzz: ## Each fuzz target for SECONDS=30
	@tests/scripts/install.sh fuzz
	tests/scripts/fuzz.sh $(SECONDS)

.PHONY: release
release: ## The programs as they are installed
	cargo build --locked --release -p ringfab-target -p ringfab --bins

# QUICK=1 for what the bars are about only. Nothing fails for being slow. The programs are those that are installed:
# built together with what measures them, they would have features of its dependencies.
.PHONY: bench
bench: release ## Every figure beside what it is held against, in .build/bench (under 20 minutes)
	@tests/scripts/install.sh build
	@tests/scripts/install.sh bench || echo "What is missing is not measured."
	cargo build --locked --release -p ringfab-bench --bins
	cargo build --locked --release -p ringfab-block --example disk_rate
	$(CARGO_TARGET_DIR)/release/ringfab-bench run $(if $(QUICK),--quick) \
	    --out $(CARGO_TARGET_DIR)/bench --scratch $(CARGO_TARGET_DIR)

.PHONY: bench-quick
bench-quick: ## The figures that have bars, in two minutes
	@$(MAKE) --no-print-directory bench QUICK=1

# Load on this machine for a minute and a half.
.PHONY: pictures
pictures: ## The pictures of docs/pictures anew: status, top, the page and the dashboard of a target under load
	@tests/scripts/install.sh build pictures
	tests/scripts/pictures.sh

# VERSION=... for another one than that of systemd/debian/changelog.
.PHONY: packages
packages: ## Debian packages of both programs in .build/packages
	@tests/scripts/install.sh build packages
	@$(MAKE) --no-print-directory release
	@tests/scripts/sbom.sh $(CARGO_TARGET_DIR)/sbom
	@tests/scripts/packages.sh $(CARGO_TARGET_DIR)/packages $(VERSION)

.PHONY: boot-test
boot-test: packages ## The packages in a fresh Debian tree under a systemd of its own (as root, 5 minutes after a build)
	@tests/scripts/install.sh boot
	tests/boot/run.sh

.PHONY: container-test
container-test: packages ## The container image, run without privilege (as root, under a minute after a build)
	@tests/scripts/install.sh container
	tests/scripts/container.sh

# RINGFAB_BIN_DIR=... for programs that are built already.
.PHONY: install
install: $(if $(RINGFAB_BIN_DIR),,release) ## Programs, unit, man pages and configuration (DESTDIR, PREFIX)
	@tests/scripts/make-install.sh $(or $(RINGFAB_BIN_DIR),$(CARGO_TARGET_DIR)/release)

.PHONY: clean
clean: ## Removes the build folder
	rm -rf -- $(CURDIR)/.build
