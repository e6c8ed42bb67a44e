#!/usr/bin/env bash
# Sets up, builds everything for vendor default and for musa, runs musa's tests, then all of default's; ends with CTest's summary
# of the latter, and with a status that counts both.
#   bash tests/run.sh [ctest arguments, e.g. -R kernels]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

bash examples/setup.sh --python-tools
unset MG_FL_PREFER  # programs of the other vendor would refuse to start
bash examples/build.sh
bash examples/build.sh --vendor musa -DMGFL_TESTS_OF_ANY_VENDOR=OFF

# Open MPI refuses to run as root unless told twice.
if [[ $EUID -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Tests that use every core are marked RUN_SERIAL, so two at a time share the machine well.
run_tests() {
  ctest --output-on-failure -j 2 "$@"
}
status=0
echo "tests: vendor musa, without the tests whose result no vendor can change"
run_tests --test-dir build-musa -LE any_vendor "$@" || status=$?
echo "tests: vendor default"
run_tests --test-dir build --no-tests=error "$@" || status=$?
exit "$status"
