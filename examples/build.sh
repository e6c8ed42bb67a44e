#!/usr/bin/env bash
# Configures and builds mgfl in build/, or for another vendor than default in build-NAME/, after examples/setup.sh:
#   bash examples/build.sh [--vendor NAME] [-DOPTION=VALUE...] [target...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=build
configure=()
if [[ ${1:-} == --vendor ]]; then
  folder=build-$2
  configure+=("-DMG_FL_PREFER=$2")
  shift 2
fi
while [[ ${1:-} == -D* ]]; do
  configure+=("$1")
  shift
done

# A compile takes up to 2 GB: no more at once than the memory (of the container, where it has a limit) holds.
memory_kb=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
if [[ -r /sys/fs/cgroup/memory.max ]] && limit=$(</sys/fs/cgroup/memory.max) && [[ $limit != max ]]; then
  memory_kb=$((limit / 1024 < memory_kb ? limit / 1024 : memory_kb))
fi
jobs=$(nproc)
most=$((memory_kb / 2000000))
if ((jobs > most)); then jobs=$((most > 0 ? most : 1)); fi

configure+=(-S . -B "$folder" -G Ninja)
# A build folder that another generator made, or that was copied here from elsewhere, cannot be continued.
cache=$folder/CMakeCache.txt
if [[ -e $cache ]] && ! { grep -qx 'CMAKE_GENERATOR:INTERNAL=Ninja' "$cache" &&
  grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; }; then
  echo "build: $folder/ was made for another folder or generator: configuring anew"
  configure+=(--fresh)
fi
if [[ -n ${LibTorch_ROOT:-} ]]; then configure+=("-DLibTorch_ROOT=$LibTorch_ROOT"); fi
if command -v ccache >/dev/null; then
  configure+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # What ccache asks for before it caches units that use precompiled headers.
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}
fi

cmake "${configure[@]}"
cmake --build "$folder" -j "$jobs" ${1:+--target "$@"}
