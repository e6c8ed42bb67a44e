# One doctest program, run under mpirun with each of the given numbers of ranks, as tests mpi_NAME_<ranks>:
#   mgfl_add_mpi_test(NAME RANKS 2 4 SOURCES source... [ARGS argument...])

# Options of this MPI's launcher: no binding to cores, and more ranks than cores.
if(NOT DEFINED MGFL_MPIEXEC_FLAGS)
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE mgfl_mpiexec_version ERROR_QUIET)
  if(mgfl_mpiexec_version MATCHES "Open MPI|OpenRTE")
    set(mgfl_mpiexec_flags --bind-to none --oversubscribe)
  else()
    set(mgfl_mpiexec_flags -bind-to none)
  endif()
  set(MGFL_MPIEXEC_FLAGS "${mgfl_mpiexec_flags}" CACHE STRING "Options of mpiexec in tests")
endif()

# The command line that starts RANKS ranks of a program, as a list.
function(mgfl_mpiexec_command variable ranks)
  set(${variable} ${MPIEXEC_EXECUTABLE} ${MGFL_MPIEXEC_FLAGS} ${MPIEXEC_NUMPROC_FLAG} ${ranks} PARENT_SCOPE)
endfunction()

# Containers run tests as root; a single rank uses one thread, so that four ranks do not fight for two cores.
set(MGFL_MPI_TEST_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1)

function(mgfl_add_mpi_program name)
  add_executable(test_mpi_${name} ${ARGN})
  target_link_libraries(test_mpi_${name} PRIVATE mgfl::mgfl mgfl_warnings doctest::doctest MPI::MPI_CXX mgfl_openmp)
  target_compile_definitions(test_mpi_${name} PRIVATE MGFL_TEST_DATA="${MGFL_TEST_DATA}")
  set_target_properties(test_mpi_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_precompile_headers(test_mpi_${name} REUSE_FROM mgfl)
endfunction()

function(mgfl_add_mpi_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "" "RANKS;SOURCES;ARGS")
  mgfl_add_mpi_program(${name} ${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cpp ${test_SOURCES})
  foreach(ranks IN LISTS test_RANKS)
    mgfl_mpiexec_command(command ${ranks})
    add_test(NAME mpi_${name}_${ranks} COMMAND ${command} $<TARGET_FILE:test_mpi_${name}> ${test_ARGS})
    set_tests_properties(mpi_${name}_${ranks} PROPERTIES TIMEOUT 180 PROCESSORS ${ranks}
                         ENVIRONMENT "${MGFL_MPI_TEST_ENVIRONMENT}")
  endforeach()
endfunction()
