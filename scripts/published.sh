#!/bin/sh
# Prints the directory of each module that is tagged: people import it or install it. With -imported the
# command is left out: it has no packages for others.
set -eu
cd "$(dirname "$0")/.."
commands=
if [ "${1-}" = -imported ]; then commands='|cmd'; fi
git ls-files go.mod '*/go.mod' | grep -vE "^(benchmarks|examples|interop|tests$commands)/" | sed 's,/*go\.mod$,,; s,^$,.,'
