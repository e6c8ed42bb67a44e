# The communicator over NCCL: on the GPUs of this machine in a build with MGFL_CUDA, and in others on an emulated NCCL, over MPI.
include(${PROJECT_SOURCE_DIR}/tests/support/mgfl_add_mpi_test.cmake)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# What a configuration says where a part is missing.
add_test(NAME device_nccl_search COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DBINARY=${CMAKE_CURRENT_BINARY_DIR}/nccl_search
  "-DGENERATOR=${CMAKE_GENERATOR}" -P ${CMAKE_CURRENT_SOURCE_DIR}/nccl/check_search.cmake)
set_tests_properties(device_nccl_search PROPERTIES TIMEOUT 60 LABELS any_vendor)

if(MGFL_CUDA)
  add_executable(test_gpu_count nccl/gpu_count.cpp)
  target_link_libraries(test_gpu_count PRIVATE mgfl_nccl_headers ${MGFL_CUDART})
  mgfl_add_mpi_program(nccl ${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cpp nccl/test_nccl.cpp)
  mgfl_mpiexec_command(launcher "")
  add_test(NAME device_nccl COMMAND ${CMAKE_COMMAND} -DCOUNT=$<TARGET_FILE:test_gpu_count> -DPROGRAM=$<TARGET_FILE:test_mpi_nccl>
    "-DLAUNCHER=${launcher}" -DLEAST=1 -P ${CMAKE_CURRENT_SOURCE_DIR}/nccl/run_on_gpus.cmake)
  set_tests_properties(device_nccl PROPERTIES TIMEOUT 300 RUN_SERIAL ON SKIP_REGULAR_EXPRESSION "skipped, no GPU"
    ENVIRONMENT "${MGFL_MPI_TEST_ENVIRONMENT}")

  # A rank that does not come: the others must end the job by their deadline of 10 s, though their GPUs wait for it.
  mgfl_add_mpi_program(nccl_failing_rank nccl/failing_rank.cpp)
  foreach(way IN ITEMS nothing late stop kill torchrun_nothing torchrun_late torchrun_kill)
    set(least 2)
    set(expect --status nonzero --never "all steps done")
    if(way MATCHES "nothing$")
      set(least 1)
      set(expect --status 0 --says "all steps done")
    elseif(way MATCHES "late$|stop$")
      list(APPEND expect --says "waited 10 s in all_reduce of 3 fp32 elements")
    endif()
    add_test(NAME device_nccl_fail_${way} COMMAND ${CMAKE_COMMAND} -DCOUNT=$<TARGET_FILE:test_gpu_count>
      "-DLAUNCHER=${Python3_EXECUTABLE};${PROJECT_SOURCE_DIR}/tests/mpi/judge_job.py;--seconds;60;${expect};--;${launcher}"
      -DPROGRAM=$<TARGET_FILE:test_mpi_nccl_failing_rank> "-DARGS=${way};10" -DLEAST=${least}
      -P ${CMAKE_CURRENT_SOURCE_DIR}/nccl/run_on_gpus.cmake)
    set_tests_properties(device_nccl_fail_${way} PROPERTIES TIMEOUT 120 RUN_SERIAL ON SKIP_REGULAR_EXPRESSION "skipped, no GPU"
      ENVIRONMENT "${MGFL_MPI_TEST_ENVIRONMENT}")
  endforeach()
  return()
endif()

# The communicator as a build with MGFL_CUDA has it, compiled and linked in a folder of its own.
mgfl_mpiexec_command(launch 1)
add_test(NAME device_nccl_compiles_and_links
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DBINARY=${CMAKE_CURRENT_BINARY_DIR}/nccl_standalone
    -DCOMPILER=${CMAKE_CXX_COMPILER} "-DFLAGS=${CMAKE_CXX_FLAGS}" "-DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
    "-DGENERATOR=${CMAKE_GENERATOR}" -DTORCH=${LibTorch_LIBRARY_DIR}/.. -DMGFL_LIBRARY=$<TARGET_FILE:mgfl>
    -DVENDOR=${MGFL_PREFERRED_VENDOR} -DKERNELS=${MGFL_KERNEL_SET} "-DLAUNCH=${launch}"
    -P ${CMAKE_CURRENT_SOURCE_DIR}/nccl/check_standalone.cmake)
set_tests_properties(device_nccl_compiles_and_links PROPERTIES TIMEOUT 300 PROCESSORS 2 SKIP_REGULAR_EXPRESSION "skipped: "
  ENVIRONMENT "${MGFL_MPI_TEST_ENVIRONMENT}")

mgfl_find_nccl(HEADERS_ONLY)
if(NOT TARGET mgfl_nccl_headers)
  add_test(NAME mpi_nccl_emulated COMMAND ${CMAKE_COMMAND} -E echo "skipped: no nccl.h and cuda_runtime_api.h here")
  set_tests_properties(mpi_nccl_emulated PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: ")
  return()
endif()
add_library(mgfl_nccl_emulated OBJECT
  ${PROJECT_SOURCE_DIR}/policies/parallel/nccl.cpp nccl/emulated_nccl.cpp nccl/emulated_stream.cpp)
target_link_libraries(mgfl_nccl_emulated PRIVATE mgfl::mgfl mgfl_warnings mgfl_nccl_headers MPI::MPI_CXX)

mgfl_add_mpi_test(nccl_emulated RANKS 1 2 3 SOURCES nccl/test_nccl.cpp)
target_link_libraries(test_mpi_nccl_emulated PRIVATE mgfl_nccl_emulated)

# A rank that fails, seen by the watchdog of the others. Arguments: the way, what must be said.
mgfl_add_mpi_program(nccl_failing_rank nccl/failing_rank.cpp)
target_link_libraries(test_mpi_nccl_failing_rank PRIVATE mgfl_nccl_emulated)
function(mgfl_add_nccl_failure way ranks)
  mgfl_mpiexec_command(command ${ranks})
  add_test(NAME mpi_nccl_fail_${way}_${ranks} COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/mpi/judge_job.py
    --seconds 13 ${ARGN} -- ${command} $<TARGET_FILE:test_mpi_nccl_failing_rank> ${way} 3)
  set_tests_properties(mpi_nccl_fail_${way}_${ranks} PROPERTIES TIMEOUT 60 LABELS any_vendor
    ENVIRONMENT "${MGFL_MPI_TEST_ENVIRONMENT}")
endfunction()
set(steps --never "all steps done")
mgfl_add_nccl_failure(nothing 2 --status 0 --says "all steps done" --never "mgfl:")
mgfl_add_nccl_failure(throw 2 --status 2 --once "mgfl: rank 1: step 2 went wrong" ${steps})
mgfl_add_nccl_failure(kill 2 --status nonzero --says "rank 1" ${steps})
mgfl_add_nccl_failure(late 3 --status 2 --once "mgfl: rank (0|2) waited 3 s in all_reduce of 3 fp32 elements .call 3 in group 'world'."
  --says "for rank 1, which did not enter it" ${steps})
mgfl_add_nccl_failure(stop 2 --status 2 --once "mgfl: rank 0 waited 3 s in all_reduce of 3 fp32 elements" --says "rank 1, .* is stopped" ${steps})
mgfl_add_nccl_failure(stop_inside 3 --status 2 --once "mgfl: rank 0 waited 3 s in all_reduce of 3 fp32 elements"
  --says "for rank 1, which entered it and stopped answering: .* is stopped" --never "for rank 2" ${steps})
mgfl_add_nccl_failure(torchrun_nothing 2 --status 0 --says "all steps done" --never "mgfl:")
mgfl_add_nccl_failure(torchrun_kill 3 --status nonzero ${steps})
mgfl_add_nccl_failure(torchrun_late 2 --status 2 --once "mgfl: rank 0 waited 3 s in all_reduce of 3 fp32 elements" --never "left the job" ${steps})
