# Thin on purpose: everything is in Rust, in xtask/. `cargo x` lists it.
.PHONY: demo test bench serve setup tools

# The published experiment that `make bench` runs: one of `evenkeel bench ls`.
SUITE ?= stripe-consistency

# See the promise kept: real fio clients against real limits, in under two minutes.
demo: setup
	cargo run --profile quick --quiet --bin evenkeel -- demo

# A published experiment again, for real and in virtual time; it says where its report lies.
bench: setup
	cargo run --release --quiet --bin evenkeel -- bench run $(SUITE)

# All that must hold before a change lands.
test: setup
	cargo x ci

# The server in the foreground, its data in ./evenkeel-data. The same build as the demo's.
serve: tools
	cargo run --profile quick --quiet --bin evenkeel -- serve

# What demo and test need beside Rust; installs only what is missing.
setup: tools
	cargo x setup

tools:
	@command -v cargo >/dev/null || { \
	  echo "cargo is missing: install Rust 1.95 or newer (https://rustup.rs), then try again" >&2; \
	  exit 1; }
	@command -v cc >/dev/null || { \
	  echo "a C compiler is missing: install one (Debian: apt-get install gcc), then try again" >&2; \
	  exit 1; }
