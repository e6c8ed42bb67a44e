cmake_minimum_required(VERSION 3.25)
# Configures the vendors in a fresh folder and compares: chain and sources, or every text of ERROR (a warning counts where a
# CHAIN is given too). Each PROGRAM is compiled against the generated header by each compiler; it says by static_asserts what must hold.
file(REMOVE_RECURSE ${BINARY})
set(environment --unset=MG_FL_PREFER)
if(ENVIRONMENT)
  set(environment MG_FL_PREFER=${ENVIRONMENT})
endif()
set(configure ${CMAKE_COMMAND} -E env ${environment} ${CMAKE_COMMAND} -S ${ROOT}/tests/override/choice -B ${BINARY} -DMGFL_ROOT=${ROOT})
foreach(argument IN LISTS ARGS)
  string(REPLACE "|" "\\;" argument "${argument}")  # between folders
  list(APPEND configure "${argument}")
endforeach()
execute_process(COMMAND ${configure} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
string(REGEX REPLACE "[ \n]+" " " flat "${errors}")  # CMake wraps its messages

foreach(text IN LISTS ERROR)
  string(FIND "${flat}" "${text}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "expected the text: ${text}\ngot: ${errors}")
  endif()
endforeach()
if(NOT CHAIN)
  if(status EQUAL 0)
    message(FATAL_ERROR "this configuration must fail, but it passed:\n${output}")
  endif()
  if(FORGOTTEN)  # the refused value is not kept
    execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=MG_FL_PREFER ${CMAKE_COMMAND} -S ${ROOT}/tests/override/choice -B ${BINARY}
      RESULT_VARIABLE status ERROR_VARIABLE errors OUTPUT_QUIET)
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "without the refused value this must pass, but: ${errors}")
    endif()
  endif()
  return()
endif()
if(NOT status EQUAL 0)
  message(FATAL_ERROR "configuration failed: ${errors}")
endif()
if(NOT output MATCHES "chain: ([^\n]*)\n" OR NOT CMAKE_MATCH_1 STREQUAL "${CHAIN}")
  message(FATAL_ERROR "expected the chain ${CHAIN}, got: ${output}")
endif()

# Only the chain's sources are compiled.
string(REGEX MATCH "sources: ([^\n]*)\n" _ "${output}")
foreach(source IN LISTS CMAKE_MATCH_1)
  get_filename_component(folder ${source} DIRECTORY)
  set(vendor "")
  while(NOT vendor)
    if(EXISTS ${folder}/manifest.hpp)
      get_filename_component(vendor ${folder} NAME)
    endif()
    get_filename_component(folder ${folder} DIRECTORY)
  endwhile()
  if(NOT vendor IN_LIST CHAIN)
    message(FATAL_ERROR "${source} belongs to a vendor that was not selected")
  endif()
endforeach()

# A second configuration leaves the header alone, so that nothing is compiled again.
set(header ${BINARY}/generated/mgfl/generated/selected_vendor.hpp)
execute_process(COMMAND touch -t 200001010000 ${header} COMMAND_ERROR_IS_FATAL ANY)
file(TIMESTAMP ${header} before "%s")
execute_process(COMMAND ${configure} OUTPUT_QUIET ERROR_QUIET)
file(TIMESTAMP ${header} after "%s")
if(NOT before STREQUAL after)
  message(FATAL_ERROR "${header} was written again although nothing changed")
endif()

foreach(program IN LISTS PROGRAM)
  foreach(compiler IN LISTS COMPILERS)
    execute_process(
      COMMAND ${compiler} -std=c++20 -Wall -Wextra -Werror -Wno-unused-parameter -fsyntax-only
        -I${ROOT}/include -I${ROOT} -I${BINARY}/generated ${program}
      RESULT_VARIABLE status ERROR_VARIABLE errors)
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "${compiler} rejects ${program}: ${errors}")
    endif()
  endforeach()
endforeach()
