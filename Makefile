# Thin on purpose: everything is in Rust, in xtask/. `cargo x` lists it.
.PHONY: demo test bench serve clients setup tools

# The published experiment that `make bench` runs: one of `evenkeel-bench ls`.
SUITE ?= stripe-consistency

# See the promise kept: real fio clients against real limits, in under two minutes. `cargo x` would
# do the same setup; its build is optimised, and takes three times as long.
demo: tools
	cargo run --profile quick --quiet -p xtask -- setup demo
	cargo run --profile quick --quiet --bin evenkeel -- demo

# A published experiment again, for real and in virtual time; it says where its report lies.
bench: tools
	cargo x setup bench
	cargo run --release --quiet --bin evenkeel-bench -- run $(SUITE)

# All that must hold before a change lands. What the tests need is installed beside the compiler.
test: tools
	cargo x ci --setup

# The server in the foreground, its data in ./evenkeel-data. The same build as the demo's.
serve: tools
	cargo run --profile quick --quiet --bin evenkeel -- serve

# What the first pages call beside the server: fio, nbdinfo, and an aws-cli in target/venv.
clients: tools
	cargo run --profile quick --quiet -p xtask -- setup clients

# What the tests need; installs only what is missing, as each setup does.
setup: tools
	cargo x setup

tools:
	@command -v cargo >/dev/null || { \
	  echo "cargo is missing: install Rust 1.95 or newer (https://rustup.rs), then try again" >&2; \
	  exit 1; }
	@command -v cc >/dev/null || { \
	  echo "a C compiler is missing: install one (Debian: apt-get install gcc), then try again" >&2; \
	  exit 1; }
