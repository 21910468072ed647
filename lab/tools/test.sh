#!/bin/bash
# All tests of the workspace in the profile that the argument names. The last lines say how many ran.
set -euo pipefail

profile=$1

if cargo nextest --version >/dev/null 2>&1; then
    # nextest leaves documentation tests to Cargo.
    cargo test --profile "$profile" --workspace --locked --doc --quiet
    exec cargo nextest run --cargo-profile "$profile" --workspace --locked
fi

# Without nextest's groups: one test at a time, as fleets of processes do not share two cores well.
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
RUST_TEST_THREADS=1 cargo test --profile "$profile" --workspace --locked --no-fail-fast 2>&1 | tee "$output" || status=$?
awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
     END { printf "Summary: %d tests run: %d passed, %d failed, %d ignored\n", passed + failed, passed, failed, ignored }' \
    "$output"
exit "$status"
