# What a person types. `make` alone lists it; each target installs what it needs (scripts/tools.sh).

# Flags of `warmpath demo` (see `warmpath demo --help`), and of `cargo test`; which targets to fuzz (all).
DEMO_FLAGS ?=
TEST_FLAGS ?=
FUZZ_TARGETS ?=
# Of `make soak`: seconds, and the seed that a soak which failed has printed.
SOAK_SECONDS ?= 600
SOAK_SEED ?=
# Of `make study`: minutes, or the whole of each load.
STUDY ?= quick

.DEFAULT_GOAL := help
.PHONY: help demo test faults soak fuzz study lint deny doc bench image build clean-tools

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show the main job here: engines, picker, Envoy, traffic (DEMO_FLAGS=...)
	@scripts/tools.sh build
	@export WARMPATH_ENVOY="$${WARMPATH_ENVOY:-$$(scripts/tools.sh envoy)}" && \
		cargo run --profile quick -- demo $(DEMO_FLAGS)

test: ## Run every test, with a real Envoy (TEST_FLAGS=...)
	@scripts/test.sh $(TEST_FLAGS)

faults: ## Run the fault matrix of the cache state, and print a line for each fault
	@scripts/test.sh --test it faults:: -- --skip kube_feed --nocapture | grep -E '^fault matrix|panicked|^test result'

soak: ## Mixed traffic and random faults before a real Envoy (SOAK_SECONDS=600 SOAK_SEED=...)
	@WARMPATH_SOAK_SECONDS="$(SOAK_SECONDS)" $(if $(SOAK_SEED),WARMPATH_SOAK_SEED="$(SOAK_SEED)") \
		scripts/test.sh --test it soak:: -- --nocapture

fuzz: ## Fuzz what reads the outside world, a minute each (FUZZ_TARGETS=..., FUZZ_SECONDS=...)
	@scripts/fuzz.sh $(FUZZ_TARGETS)

study: ## Run every policy over many loads, for docs/policies.md (STUDY=quick|full)
	@scripts/study.sh $(STUDY)

lint: ## Check formatting and lints; warnings are errors
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings

deny: ## Check licences, duplicates, bans and sources of the dependencies
	"$$(scripts/tools.sh cargo-deny)" check licenses bans sources

doc: ## Build the documentation of the code; warnings are errors
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps

bench: ## Measure the parts (scripts/figures.sh measures the whole, as README.md quotes it)
	@scripts/tools.sh build
	cargo bench --bench '*'

image: build ## Pack the release binary as an image, without Docker: target/image.tar
	scripts/image.sh --oci target/image.tar target/release/warmpath

build: ## Build the release binary: target/release/warmpath
	@scripts/tools.sh build
	cargo build --release

clean-tools: ## Remove the tools that were installed outside the clone
	@scripts/tools.sh clean
