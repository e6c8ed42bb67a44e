# Compiles device/*.cu with nvcc and adds the objects to target mgfl. By commands, not as a language of the project: a language
# would have to be enabled by every project that adds mgfl as a subfolder, and nvcc would get mgfl's warnings and its
# precompiled header.
set(MGFL_CUDA_ARCHITECTURES "80;90" CACHE STRING
  "Compute capabilities of the cuda kernels, ascending; newer GPUs run the last one's PTX")

function(mgfl_find_cuda_toolkit)
  set(advice "Install the CUDA toolkit (12 or newer), name its compiler with -DMGFL_NVCC=/path/to/bin/nvcc, or build without: "
    "-DMGFL_KERNELS=auto.")
  string(JOIN "" advice ${advice})
  find_program(MGFL_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda /opt/cuda PATH_SUFFIXES bin
    DOC "CUDA's compiler, for MGFL_KERNELS=cuda")
  mark_as_advanced(MGFL_NVCC)
  if(NOT MGFL_NVCC)
    message(FATAL_ERROR "mgfl: MGFL_KERNELS=cuda needs CUDA's compiler nvcc, and there is none in PATH, CUDA_HOME, CUDA_PATH or "
      "/usr/local/cuda.\n  ${advice}")
  endif()
  execute_process(COMMAND ${MGFL_NVCC} --version OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT text MATCHES "release ([0-9]+)\\.([0-9]+)")
    message(FATAL_ERROR "mgfl: MGFL_NVCC='${MGFL_NVCC}' is no CUDA compiler that runs here: '${MGFL_NVCC} --version' "
      "gives no release.\n  ${advice}")
  endif()
  set(version ${CMAKE_MATCH_1}.${CMAKE_MATCH_2})
  if(version VERSION_LESS 12.0)
    message(FATAL_ERROR "mgfl: MGFL_KERNELS=cuda needs CUDA 12 or newer, for C++20; ${MGFL_NVCC} is of CUDA ${version}.\n  ${advice}")
  endif()

  # The shared run time, which LibTorch's CUDA wheels load too: one run time a process. The static one would lend its
  # functions to LibTorch's libraries, since an executable's symbols come first, and CUDA's state would be in two places.
  get_filename_component(root ${MGFL_NVCC} REALPATH)
  get_filename_component(root ${root} DIRECTORY)
  get_filename_component(root ${root} DIRECTORY)
  find_library(MGFL_CUDART cudart HINTS ${root} PATH_SUFFIXES lib64 lib lib/x64 DOC "CUDA's shared run time, for MGFL_KERNELS=cuda")
  mark_as_advanced(MGFL_CUDART)
  if(NOT MGFL_CUDART)
    message(FATAL_ERROR "mgfl: MGFL_KERNELS=cuda needs CUDA's run time libcudart.so, and ${root} has none beside its nvcc.\n"
      "  Install the toolkit's run time for developers (package cuda-cudart-dev), or name the file with -DMGFL_CUDART=/path/to/libcudart.so.")
  endif()
  message(STATUS "mgfl: cuda kernels are compiled by nvcc ${version} for ${MGFL_CUDA_ARCHITECTURES}")
endfunction()

function(mgfl_configure_cuda)
  mgfl_find_cuda_toolkit()
  set(targets "")
  foreach(architecture IN LISTS MGFL_CUDA_ARCHITECTURES)
    if(NOT architecture MATCHES "^[0-9]+[af]?$")
      message(FATAL_ERROR "mgfl: MGFL_CUDA_ARCHITECTURES='${MGFL_CUDA_ARCHITECTURES}' is no list of compute capabilities.\n"
        "  Write them without the point, ascending, with semicolons between, e.g. -DMGFL_CUDA_ARCHITECTURES=\"80;90\".")
    endif()
    list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
    set(last ${architecture})
  endforeach()
  if(NOT targets)
    message(FATAL_ERROR "mgfl: MGFL_CUDA_ARCHITECTURES is empty.\n  Name at least one compute capability, e.g. -DMGFL_CUDA_ARCHITECTURES=90.")
  endif()
  list(APPEND targets -gencode arch=compute_${last},code=compute_${last})

  get_target_property(includes LibTorch::LibTorch INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM includes PREPEND "-isystem;")
  set(flags -std=c++20 -ccbin ${CMAKE_CXX_COMPILER} -Werror all-warnings -Xcompiler=-Wall
    -I${MGFL_ROOT_DIR}/include -I${MGFL_ROOT_DIR} ${includes} ${targets})
  if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    list(APPEND flags -O0 -g -lineinfo)
  else()
    list(APPEND flags -O3 -DNDEBUG)
  endif()
  if(CMAKE_POSITION_INDEPENDENT_CODE)
    list(APPEND flags -Xcompiler=-fPIC)
  endif()

  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/device/*.cu)
  set(objects "")
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME)
    set(object ${folder}/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${MGFL_NVCC} ${flags} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "Building CUDA object cuda/${name}.o" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set_source_files_properties(${objects} PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
  target_sources(mgfl PRIVATE ${objects})
  target_link_libraries(mgfl PRIVATE ${MGFL_CUDART})
endfunction()
mgfl_configure_cuda()
