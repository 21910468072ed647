# The commands that a person types. `make` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Here, whatever the environment says: the demo and the tests look for tools beside what Cargo built.
export CARGO_TARGET_DIR := $(CURDIR)/target
TOOLS := target/tools
CARGO_DENY_VERSION := 0.20.2
CARGO_FUZZ_VERSION := 0.13.2
# Optimised and quick to link; `release` is for images.
PROFILE := quick

.PHONY: help
help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: demo
demo: tools build ## run a fleet behind real Envoy, round robin against kvpick; KEEP=1 leaves it running
	target/$(PROFILE)/kvpick-lab demo $(if $(KEEP),--keep)

.PHONY: test
test: tools build ## run all tests, end to end through real Envoy included
	@lab/tools/test.sh $(PROFILE)

.PHONY: bench
bench: tools ## how fast events are read, prompts made and answers passed, beside others or the least there is to do
	cargo bench --profile $(PROFILE) --locked -p kvpick-agent --bench reader
	FASTOKENS_BPE_THREADS=1 cargo bench --profile $(PROFILE) --locked -p kvpick-core --bench tokens
	cargo bench --profile $(PROFILE) --locked -p kvpick --bench prompts
	cargo build --profile $(PROFILE) --locked -p kvpick --bin kvpick --example echo
	cargo bench --profile $(PROFILE) --locked -p kvpick-lab --bench sse

.PHONY: build
build: ## build all programs
	cargo build --profile $(PROFILE) --workspace --locked

.PHONY: tools
tools: ## fetch Envoy, tokenizers, kubectl, Helm and schemas into target/tools
	@python3 lab/tools/fetch.py $(TOOLS)

.PHONY: lint
lint: tools ## check format, lints, documentation, walls between crates, Envoy configs, Dockerfiles and the chart
	cargo fmt --all --check
	cargo clippy --profile $(PROFILE) --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --profile $(PROFILE) --workspace --no-deps --document-private-items --locked
	lab/tools/walls.sh
	@# tls.yaml reads certificates that only a test makes.
	@for file in $(filter-out %/tls.yaml,$(wildcard envoy/standalone/*.yaml)) envoy/*/generated*.yaml; do \
		$(TOOLS)/envoy --mode validate --log-level error -c "$$file"; done
	@for file in envoy/standalone/envoy-1.36.yaml envoy/standalone/original-dst.yaml; do \
		$(TOOLS)/envoy-1.36 --mode validate --log-level error -c "$$file"; done
	@if [[ -x $(TOOLS)/hadolint ]]; then $(TOOLS)/hadolint */Dockerfile; else echo "lint: no hadolint for this machine" >&2; fi
	@if [[ -x $(TOOLS)/helm ]]; then $(TOOLS)/helm lint --strict --quiet envoy/kubernetes/chart; \
		else echo "lint: no helm for this machine" >&2; fi

.PHONY: deny
deny: deny-tool ## check licences, duplicates and sources of all dependencies
	$(TOOLS)/cargo/bin/cargo-deny --locked check bans licenses sources

.PHONY: deny-tool
deny-tool: ## build cargo-deny into target/tools; takes minutes, once
	@if [[ "$$($(TOOLS)/cargo/bin/cargo-deny --version 2>/dev/null)" != "cargo-deny $(CARGO_DENY_VERSION)" ]]; then \
		env -u CARGO_TARGET_DIR cargo install cargo-deny --locked --version $(CARGO_DENY_VERSION) --root $(TOOLS)/cargo; \
	fi

# libFuzzer's instrumentation needs no nightly compiler; only its sanitizers do, and there is no unsafe code to watch.
FUZZ := --sanitizer none --fuzz-dir agent/core/fuzz --target-dir target/fuzz
TARGET ?= decode
FUZZ_SECONDS := $(or $(SECONDS),60)

.PHONY: fuzz
fuzz: fuzz-tool ## feed made-up bytes to the agent; TARGET=decode, replayed or engine, SECONDS=60
	@mkdir -p target/fuzz/corpus/$(TARGET)
	PATH="$(CURDIR)/$(TOOLS)/cargo/bin:$$PATH" cargo fuzz run $(FUZZ) $(TARGET) target/fuzz/corpus/$(TARGET) \
		agent/core/fuzz/corpus/$(TARGET) -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1

.PHONY: fuzz-tool
fuzz-tool: ## build cargo-fuzz into target/tools; takes a minute, once
	@if [[ "$$($(TOOLS)/cargo/bin/cargo-fuzz --version 2>/dev/null)" != "cargo-fuzz $(CARGO_FUZZ_VERSION)" ]]; then \
		env -u CARGO_TARGET_DIR cargo install cargo-fuzz --locked --version $(CARGO_FUZZ_VERSION) --root $(TOOLS)/cargo; \
	fi
