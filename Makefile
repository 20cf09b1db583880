# What a person types. `make` alone lists it; each target installs what it needs (scripts/tools.sh).

# Flags of `warmpath demo` (see `warmpath demo --help`), and of `cargo test`; which targets to fuzz (all).
DEMO_FLAGS ?=
TEST_FLAGS ?=
FUZZ_TARGETS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz lint deny doc bench image build clean-tools

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show the main job here: engines, picker, Envoy, traffic (DEMO_FLAGS=...)
	@scripts/tools.sh build
	@export WARMPATH_ENVOY="$${WARMPATH_ENVOY:-$$(scripts/tools.sh envoy)}" && \
		cargo run --profile quick -- demo $(DEMO_FLAGS)

test: ## Run every test, with a real Envoy (TEST_FLAGS=...)
	@scripts/test.sh $(TEST_FLAGS)

fuzz: ## Fuzz what reads the outside world, a minute each (FUZZ_TARGETS=..., FUZZ_SECONDS=...)
	@scripts/fuzz.sh $(FUZZ_TARGETS)

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
