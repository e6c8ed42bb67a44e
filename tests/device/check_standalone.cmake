cmake_minimum_required(VERSION 3.25)
# Configures, compiles and links tests/device/standalone for one architecture, and starts the program: it must run its cases, or
# say that there is no device.
set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -S ${ROOT}/tests/device/standalone -B ${BINARY} -DMGFL_ROOT=${ROOT}
  -DMGFL_LIBRARY=${MGFL_LIBRARY} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
  -DLibTorch_INCLUDE_DIR=${TORCH} -DMGFL_CUDA_ARCHITECTURES=80)
execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=MG_FL_PREFER ${configure}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(output MATCHES "needs CUDA's compiler nvcc")
  message("skipped: no nvcc here, which the kernels of vendors/cuda are compiled by")
  return()
endif()
if(NOT status EQUAL 0)
  message(FATAL_ERROR "configuration failed:\n${output}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} --parallel 2 RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the build failed:\n${output}")
endif()
execute_process(COMMAND ${BINARY}/test_device_cuda_kernels RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0 AND NOT (status EQUAL 77 AND output MATCHES "no CUDA device"))
  message(FATAL_ERROR "the program ended with ${status}:\n${output}")
endif()
string(REPLACE "skipped: " "" output "${output}")  # the link, which is what this test is for, was not
message("compiled, linked and started:\n${output}")
