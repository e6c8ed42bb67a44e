#!/usr/bin/env bash
# Sets up, builds everything, runs all tests; ends with CTest's summary and its status.
#   bash tests/run.sh [ctest arguments, e.g. -R kernels]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

bash examples/setup.sh --python-tools
bash examples/build.sh

# Open MPI refuses to run as root unless told twice.
if [[ $EUID -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Tests that use every core are marked RUN_SERIAL, so two at a time share the machine well.
exec ctest --test-dir build --output-on-failure --no-tests=error -j 2 "$@"
