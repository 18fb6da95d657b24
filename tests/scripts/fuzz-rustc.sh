#!/usr/bin/env bash
# The compiler, as Cargo calls it for our own crates when it builds fuzz targets: with the coverage counters that
# libFuzzer reads. No nightly compiler is needed, since they are a pass of LLVM that the stable one runs when it is told
# to.
#
#   fuzz-rustc.sh RUSTC ARGUMENT...
set -euo pipefail

exec "$@" --cfg fuzzing \
    -C passes=sancov-module \
    -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
    -C llvm-args=-sanitizer-coverage-pc-table \
    -C llvm-args=-sanitizer-coverage-trace-compares \
    -C codegen-units=1
