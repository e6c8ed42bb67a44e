# Finds LibTorch in a `torch` wheel or an unpacked libtorch folder, for CPU builds: libtorch_cpu and libc10, nothing of CUDA.
# The wheel's own TorchConfig.cmake insists on a CUDA compiler, so it is not used.
#
#   LibTorch_ROOT        folder that holds include/ and lib/, or a Python environment with the torch package (also from the
#                        environment); by default the project's .venv, then any `torch` that python3 knows
#   LibTorch::LibTorch   the imported target
#   LibTorch_VERSION     e.g. 2.11.0

set(_mgfl_candidates "")
foreach(_root IN ITEMS "${LibTorch_ROOT}" "$ENV{LibTorch_ROOT}")
  if(_root)
    file(GLOB _mgfl_found "${_root}/lib/python3*/site-packages/torch")
    list(APPEND _mgfl_candidates "${_root}" ${_mgfl_found})
  endif()
endforeach()
file(GLOB _mgfl_found "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch")
list(APPEND _mgfl_candidates ${_mgfl_found})
if(NOT _mgfl_candidates)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _mgfl_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND _mgfl_candidates ${_mgfl_python})
endif()

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h PATHS ${_mgfl_candidates} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${_mgfl_candidates} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS ${_mgfl_candidates} PATH_SUFFIXES lib NO_DEFAULT_PATH)

if(LibTorch_INCLUDE_DIR)
  foreach(_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${LibTorch_INCLUDE_DIR}/${_header}" AND NOT LibTorch_VERSION)
      file(STRINGS "${LibTorch_INCLUDE_DIR}/${_header}" _mgfl_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
      string(REGEX MATCHALL "[0-9]+" _mgfl_numbers "${_mgfl_lines}")
      list(JOIN _mgfl_numbers "." LibTorch_VERSION)
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "mgfl: run 'bash examples/setup.sh', which puts LibTorch into .venv, or name yours with -DLibTorch_ROOT=/path/to/libtorch")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  get_filename_component(_mgfl_lib "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  set(LibTorch_LIBRARY_DIR "${_mgfl_lib}")
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  target_link_libraries(LibTorch::LibTorch INTERFACE "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}")
  # The CPU library names CUDA's run time among its needs; it is found when the program starts, not when it is linked.
  target_link_options(LibTorch::LibTorch INTERFACE
    "LINKER:--unresolved-symbols=ignore-in-shared-libs" "LINKER:-rpath,${_mgfl_lib}")
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)
