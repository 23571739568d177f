# Commands for developers. `just ci` checks everything that the project promises.

# The tests that need nothing but the toolchain.
test *args:
    cargo test --workspace {{args}}

# Formatting, lints and documentation, as CI has them.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Format everything.
fmt:
    cargo fmt --all

# The binary for users, in target/dist: stripped and optimised across crates. Ten minutes.
dist:
    cargo build --profile dist --bin callboard

# A wheel with the Python package, its extension and the binary; `just wheel manylinux` is the one for users.
wheel *args:
    .ci/wheel {{args}}

# The time of calls beside an earlier commit, in turns; refuses on a busy machine. Ten minutes after the builds.
speed commit:
    python3 benches/speed.py {{commit}}

# The Python client over QUIC against grpcio's; needs the package with its extension, and grpcio.
python-native binary="target/release/callboard":
    python3 benches/python_native.py {{binary}}

# Replicas on the GPUs of this machine, with figures; one line where there is none. Needs PyTorch. Minutes.
gpu binary="target/release/callboard":
    PYTHONPATH=python/src timeout 480 python3 benches/gpus.py {{binary}}

# Serve the digits on http://127.0.0.1:8000.
serve:
    cargo run --release -- serve examples/digits

# Every example; each ends by itself and asserts what it claims.
examples:
    cargo run --example hello
    cargo run --example batching
    cargo run --example restart
    cargo run --example rollout
    cargo run --example isolate
    cargo run --example calls
    cargo run --example actors
    cargo run --example actors_over_nodes
    cargo run --example sessions
    cargo run --example tensors
    cargo run --example asynchronous
    cargo run --example branches
    cargo run --example streaming
    cargo run --example mount
    cargo run --example unix_edge
    cargo run --example functions
    cargo run --example evaluation
    cargo run --example nodes
    cargo run --example simulation
    cargo run --example actor_simulation

# Each feature of the facade alone, and none of them.
features:
    cargo check --no-default-features
    cargo check --no-default-features --features arrow
    cargo check --no-default-features --features http
    cargo check --no-default-features --features http,tls,zstd
    cargo check --no-default-features --features net
    cargo check --no-default-features --features onnx
    cargo check --no-default-features --features config
    cargo check --no-default-features --features cli

# One decoder for a million runs, e.g. `just fuzz json`; needs a nightly toolchain and cargo-fuzz.
fuzz target runs="1000000":
    mkdir -p fuzz/corpus/{{target}}
    cargo +nightly fuzz run {{target}} fuzz/corpus/{{target}} fuzz/seeds/{{target}} -- -runs={{runs}} -max_len=2048 -timeout=20

# Mutants of limits and decoders that no test notices, of all files or one; needs cargo-mutants. Hours for all.
mutants file=mutated package="callboard-codec":
    cargo mutants --package {{package}} --file '{{file}}' --timeout 120 --build-timeout 600 --jobs 1 --output target

mutated := "crates/codec/src/{account.rs,metered/*.rs,limits.rs,msgpack/decode.rs,typed/msgpack.rs,json/decode.rs,npy/*.rs,value/data_frame/check.rs,envelope/layout.rs}"

# Licences, advisories and bans; needs cargo-deny.
deny:
    cargo deny check

# Ten thousand idle and ten thousand slow clients: their cost to the node and to other callers.
crowds:
    cargo test --release --test crowds -- --nocapture --include-ignored ten_thousand

# Attacks on the release binary, each next to an honest caller: a quiet machine, about five minutes.
hostile *args:
    cargo build --release -p callboard -p callboard-hostile-server --bin callboard --bin hostile_server
    CALLBOARD_HOSTILE_BINARY=${CARGO_TARGET_DIR:-$PWD/target}/release/callboard cargo test --test hostile -- {{args}}

# The guarantees of a cluster under load and loss, in full and with figures: a quiet machine, about fifteen minutes.
promises:
    CALLBOARD_PROMISES=full RUST_BACKTRACE=0 cargo test --release -p callboard-net --test it -- promises frozen --nocapture --test-threads=1
    CALLBOARD_PROMISES=full CALLBOARD_REQUIRE=namespaces RUST_BACKTRACE=0 cargo test --release -p callboard-net --test partition calls -- --nocapture --test-threads=1

# The cost of metrics, access log and request ids, in instructions per call and request; needs valgrind.
metrics-cost:
    benches/metrics-cost.sh

# Instructions of this tree compared with an earlier commit; needs valgrind. Half an hour.
cost-since commit:
    benches/cost-since.sh {{commit}}

# Each door (gRPC, OpenAI's API, MCP) next to the shortest way to the same work: a quiet machine, four minutes.
doors *args:
    cargo bench --bench doors -- {{args}}

# Whether `callboard bench` and oha agree on one server; needs oha (or wrk) and python3.
agreement:
    cargo build --release
    python3 benches/agreement.py target/release/callboard oha

# Callboard next to its peers in Python, into benches/README.md; needs wrk and python3, and a quiet machine. 40 minutes.
peers *args:
    cargo build --release -p callboard -p callboard-hostile-server --bin callboard --bin hostile_server --example bare_axum
    python3 benches/peers/run.py --readme benches/README.md {{args}}

# The simulations with many seeds, e.g. `just simulate 10000`; CALLBOARD_SEED=<seed> repeats one.
simulate seeds="2000":
    CALLBOARD_SEEDS={{seeds}} cargo test -p callboard-core simulation -- --nocapture

# Clients in Python, TypeScript, Go and Rust from openapi-generator: java and some minutes.
generators:
    cargo test --test external -- --include-ignored generator

# Describes the services of gRPC, after a change of their files; needs protoc.
protos:
    cd crates/grpc/proto && protoc --descriptor_set_out=services.bin *.proto

# Everything that CI runs, in its order.
ci:
    .ci/run
