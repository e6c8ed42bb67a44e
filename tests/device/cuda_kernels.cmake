# mgfl_add_cuda_device_test(): the program test_device_cuda_kernels, against the target mgfl, which holds the kernels.
function(mgfl_add_cuda_device_test)
  set(tests ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
  add_executable(test_device_cuda_kernels
    ${tests}/device/cuda_kernels/main.cpp ${tests}/unit/cuda_kernels/test_agreement.cpp)
  target_compile_definitions(test_device_cuda_kernels PRIVATE MGFL_TEST_ON_GPU)
  get_filename_component(root ${MGFL_NVCC} REALPATH)
  get_filename_component(root ${root} DIRECTORY)
  target_include_directories(test_device_cuda_kernels SYSTEM PRIVATE ${root}/../include)
  target_link_libraries(test_device_cuda_kernels PRIVATE mgfl_headers mgfl mgfl_warnings doctest::doctest ${MGFL_CUDART})
endfunction()
