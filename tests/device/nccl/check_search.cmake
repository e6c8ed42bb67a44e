cmake_minimum_required(VERSION 3.25)
# What a configuration with MGFL_CUDA=ON says where a part is missing: each step adds the part that the one before asked for.
file(REMOVE_RECURSE ${BINARY})
set(site ${BINARY}/site-packages)

# expect(NAME STATUS text...): a fresh configuration passes (STATUS 0) or stops (STATUS 1), and says each text.
function(expect name stops)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=CUDA_HOME --unset=CUDA_PATH ${CMAKE_COMMAND} -G ${GENERATOR}
      -S ${ROOT}/tests/device/nccl/search -B ${BINARY}/${name} -DMGFL_ROOT=${ROOT} -DLibTorch_LIBRARY_DIR=${site}/torch/lib
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " flat "${output}")  # CMake wraps its messages
  if(stops AND status EQUAL 0 OR NOT stops AND NOT status EQUAL 0)
    message(FATAL_ERROR "${name}: ended with ${status}:\n${output}")
  endif()
  foreach(text IN LISTS ARGN)
    string(FIND "${flat}" "${text}" found)
    if(found EQUAL -1)
      message(FATAL_ERROR "${name}: expected the text: ${text}\ngot: ${output}")
    endif()
  endforeach()
endfunction()

file(MAKE_DIRECTORY ${site}/torch/lib ${site}/nvidia/cu13/include ${site}/nvidia/cu13/lib ${site}/nvidia/nccl/include ${site}/nvidia/nccl/lib)
expect(no_torch_cuda ON "mgfl: MGFL_CUDA=ON needs a LibTorch with CUDA, and ${site}/torch/lib has no libtorch_cuda.so")
file(TOUCH ${site}/torch/lib/libtorch_cuda.so ${site}/torch/lib/libc10_cuda.so)
expect(no_headers ON "mgfl: MGFL_CUDA=ON needs CUDA's headers" "bash examples/setup.sh --cuda" "-DMGFL_CUDA_INCLUDE_DIR=")
file(TOUCH ${site}/nvidia/cu13/include/cuda_runtime_api.h)
expect(no_run_time ON "mgfl: MGFL_CUDA=ON needs CUDA's run time" "-DMGFL_CUDART=/path/to/libcudart.so")
file(TOUCH ${site}/nvidia/cu13/lib/libcudart.so.13)
expect(no_nccl ON "mgfl: MGFL_CUDA=ON needs NCCL, and nccl.h or libnccl.so is in none of the usual places." "-DMGFL_NCCL_LIBRARY=")
file(TOUCH ${site}/nvidia/nccl/lib/libnccl.so.2)
expect(no_nccl_header ON "mgfl: MGFL_CUDA=ON needs NCCL, and nccl.h")
file(WRITE ${site}/nvidia/nccl/include/nccl.h "#define NCCL_VERSION_CODE 21705\n")
expect(old_nccl ON "mgfl: MGFL_CUDA=ON needs NCCL 2.18 or newer" "is of version 21705")
file(WRITE ${site}/nvidia/nccl/include/nccl.h "#define NCCL_VERSION_CODE 22809\n")
expect(whole OFF "the communicator over NCCL uses ${site}/nvidia/nccl/lib/libnccl.so.2")
