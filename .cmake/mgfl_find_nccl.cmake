# mgfl_find_nccl(): what the communicator over NCCL needs beside LibTorch, as targets:
#
#   mgfl_nccl_headers   CUDA's and NCCL's headers
#   mgfl_nccl           these, and the libraries: NCCL, CUDA's run time, LibTorch's CUDA libraries
#
# Looked for in the wheels beside LibTorch's (examples/setup.sh --cuda), then in CUDA_HOME and /usr/local/cuda, then in the system.
#
#   MGFL_CUDA_INCLUDE_DIR, MGFL_NCCL_INCLUDE_DIR   folders of cuda_runtime_api.h and nccl.h
#   MGFL_NCCL_LIBRARY, MGFL_CUDART                 libnccl.so, libcudart.so
#
# mgfl_find_nccl(HEADERS_ONLY) makes mgfl_nccl_headers alone, and only where the headers are found.
function(mgfl_find_nccl)
  cmake_parse_arguments(PARSE_ARGV 0 find "HEADERS_ONLY" "" "")
  set(wheels "${LibTorch_LIBRARY_DIR}/../../nvidia")
  set(roots ${wheels}/cu13 $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda /opt/cuda)
  find_path(MGFL_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${roots} PATH_SUFFIXES include)
  find_path(MGFL_NCCL_INCLUDE_DIR nccl.h HINTS ${wheels}/nccl ${roots} PATH_SUFFIXES include)
  find_library(MGFL_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${wheels}/nccl ${roots} PATH_SUFFIXES lib lib64)
  find_library(MGFL_CUDART NAMES libcudart.so.13 cudart NAMES_PER_DIR HINTS ${roots} PATH_SUFFIXES lib lib64)
  find_library(MGFL_TORCH_CUDA torch_cuda PATHS "${LibTorch_LIBRARY_DIR}" NO_DEFAULT_PATH)
  find_library(MGFL_C10_CUDA c10_cuda PATHS "${LibTorch_LIBRARY_DIR}" NO_DEFAULT_PATH)
  mark_as_advanced(MGFL_CUDA_INCLUDE_DIR MGFL_NCCL_INCLUDE_DIR MGFL_NCCL_LIBRARY MGFL_CUDART MGFL_TORCH_CUDA MGFL_C10_CUDA)

  if(NOT find_HEADERS_ONLY)
    set(advice "  Run 'bash examples/setup.sh --cuda', which puts it into .venv, or name it with")
    if(NOT MGFL_TORCH_CUDA OR NOT MGFL_C10_CUDA)
      message(FATAL_ERROR "mgfl: MGFL_CUDA=ON needs a LibTorch with CUDA, and ${LibTorch_LIBRARY_DIR} has no libtorch_cuda.so and "
        "libc10_cuda.so.\n  Name such a one with -DLibTorch_ROOT=/path/to/libtorch, or build with -DMGFL_CUDA=OFF.")
    endif()
    if(NOT MGFL_CUDA_INCLUDE_DIR)
      message(FATAL_ERROR "mgfl: MGFL_CUDA=ON needs CUDA's headers, and cuda_runtime_api.h is in none of the usual places.\n"
        "${advice} -DMGFL_CUDA_INCLUDE_DIR=/path/to/cuda/include.")
    endif()
    if(NOT MGFL_CUDART)
      message(FATAL_ERROR "mgfl: MGFL_CUDA=ON needs CUDA's run time, and libcudart.so is in none of the usual places.\n"
        "${advice} -DMGFL_CUDART=/path/to/libcudart.so.")
    endif()
    if(NOT MGFL_NCCL_INCLUDE_DIR OR NOT MGFL_NCCL_LIBRARY)
      message(FATAL_ERROR "mgfl: MGFL_CUDA=ON needs NCCL, and nccl.h or libnccl.so is in none of the usual places.\n"
        "${advice} -DMGFL_NCCL_INCLUDE_DIR=/path/to/nccl/include -DMGFL_NCCL_LIBRARY=/path/to/nccl/lib/libnccl.so.")
    endif()
  endif()

  if(NOT MGFL_CUDA_INCLUDE_DIR OR NOT MGFL_NCCL_INCLUDE_DIR)
    return()
  endif()
  if(NOT TARGET mgfl_nccl_headers)
    add_library(mgfl_nccl_headers INTERFACE)
    target_include_directories(mgfl_nccl_headers SYSTEM INTERFACE ${MGFL_NCCL_INCLUDE_DIR} ${MGFL_CUDA_INCLUDE_DIR})
  endif()
  if(find_HEADERS_ONLY)
    return()
  endif()
  file(STRINGS ${MGFL_NCCL_INCLUDE_DIR}/nccl.h version REGEX "define NCCL_VERSION_CODE ")
  string(REGEX MATCH "[0-9]+" version "${version}")
  if(version LESS 21800)
    message(FATAL_ERROR "mgfl: MGFL_CUDA=ON needs NCCL 2.18 or newer, and ${MGFL_NCCL_INCLUDE_DIR}/nccl.h is of version ${version}.\n"
      "${advice} -DMGFL_NCCL_INCLUDE_DIR=/path/to/nccl/include -DMGFL_NCCL_LIBRARY=/path/to/nccl/lib/libnccl.so.")
  endif()
  message(STATUS "mgfl: the communicator over NCCL uses ${MGFL_NCCL_LIBRARY}, ${MGFL_CUDART}, ${MGFL_TORCH_CUDA}")

  get_filename_component(nccl_folder ${MGFL_NCCL_LIBRARY} DIRECTORY)
  get_filename_component(cudart_folder ${MGFL_CUDART} DIRECTORY)
  add_library(mgfl_nccl INTERFACE)
  # Nobody calls LibTorch's CUDA libraries by name: loaded, they register themselves. What they need in turn is found when the
  # program starts, so that the link does not ask for all of CUDA.
  target_link_libraries(mgfl_nccl INTERFACE mgfl_nccl_headers
    "-Wl,--push-state,--no-as-needed" ${MGFL_TORCH_CUDA} ${MGFL_C10_CUDA} "-Wl,--pop-state" ${MGFL_NCCL_LIBRARY} ${MGFL_CUDART})
  target_link_options(mgfl_nccl INTERFACE "LINKER:--unresolved-symbols=ignore-in-shared-libs"
    "LINKER:-rpath,${LibTorch_LIBRARY_DIR}" "LINKER:-rpath,${nccl_folder}" "LINKER:-rpath,${cudart_folder}")
endfunction()
