cmake_minimum_required(VERSION 3.25)
# MGFL_KERNELS=cuda where no nvcc is found, where the named one is none or too old, and with architectures that are none: each
# configuration must stop with the sentence for it.
file(REMOVE_RECURSE ${BINARY})
file(GLOB hidden /usr/local/cuda*/bin /opt/cuda*/bin)
string(REPLACE ":" ";" path "$ENV{PATH}")
foreach(folder IN LISTS path)
  if(EXISTS ${folder}/nvcc)
    list(APPEND hidden ${folder})
  endif()
endforeach()
file(WRITE ${BINARY}/hide.cmake "set(CMAKE_IGNORE_PATH \"${hidden}\" CACHE STRING \"\")\n")

function(write_compiler name text)
  file(WRITE ${BINARY}/programs/${name} "#!/bin/sh\necho '${text}'\n")
  file(CHMOD ${BINARY}/programs/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
write_compiler(old_nvcc "Cuda compilation tools, release 11.8, V11.8.89")

# expect_stop(NAME SOURCE folder ARGS -D... ERROR text...)
function(expect_stop name)
  cmake_parse_arguments(PARSE_ARGV 1 stop "" "SOURCE" "ARGS;ERROR")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=MG_FL_PREFER --unset=CUDA_HOME --unset=CUDA_PATH
      ${CMAKE_COMMAND} -G ${GENERATOR} -S ${stop_SOURCE} -B ${BINARY}/${name} ${stop_ARGS}
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE errors)
  string(REGEX REPLACE "[ \n]+" " " flat "${errors}")  # CMake wraps its messages
  if(status EQUAL 0)
    message(FATAL_ERROR "${name}: this configuration must stop, but it passed")
  endif()
  foreach(text IN LISTS stop_ERROR)
    string(FIND "${flat}" "${text}" found)
    if(found EQUAL -1)
      message(FATAL_ERROR "${name}: expected the text: ${text}\ngot: ${errors}")
    endif()
  endforeach()
endfunction()

set(toolkit ${ROOT}/tests/device/toolkit)
expect_stop(no_nvcc SOURCE ${toolkit} ARGS -C ${BINARY}/hide.cmake -DMGFL_ROOT=${ROOT}
  ERROR "mgfl: MGFL_KERNELS=cuda needs CUDA's compiler nvcc, and there is none" "-DMGFL_NVCC=/path/to/bin/nvcc" "-DMGFL_KERNELS=auto")
expect_stop(old_nvcc SOURCE ${toolkit} ARGS -DMGFL_ROOT=${ROOT} -DMGFL_NVCC=${BINARY}/programs/old_nvcc
  ERROR "mgfl: MGFL_KERNELS=cuda needs CUDA 12 or newer, for C++20" "is of CUDA 11.8")
expect_stop(missing_nvcc SOURCE ${toolkit} ARGS -DMGFL_ROOT=${ROOT} -DMGFL_NVCC=${BINARY}/nowhere
  ERROR "MGFL_NVCC='${BINARY}/nowhere' is no CUDA compiler that runs here")
expect_stop(whole_project SOURCE ${ROOT} ARGS -DCMAKE_CXX_COMPILER=${COMPILER} -DLibTorch_INCLUDE_DIR=${TORCH} -DMGFL_BUILD_TESTS=OFF
  -DMGFL_BUILD_EXAMPLES=OFF -DMGFL_KERNELS=cuda -DMGFL_NVCC=${CMAKE_COMMAND}
  ERROR "MGFL_NVCC='${CMAKE_COMMAND}' is no CUDA compiler that runs here")

find_program(nvcc nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin NO_CACHE)
if(nvcc)
  expect_stop(architectures SOURCE ${toolkit} ARGS -DMGFL_ROOT=${ROOT} -DMGFL_CUDA_ARCHITECTURES=sm_90
    ERROR "MGFL_CUDA_ARCHITECTURES='sm_90' is no list of compute capabilities.")
  expect_stop(no_architecture SOURCE ${toolkit} ARGS -DMGFL_ROOT=${ROOT} -DMGFL_CUDA_ARCHITECTURES=
    ERROR "MGFL_CUDA_ARCHITECTURES is empty.")
endif()
