cmake_minimum_required(VERSION 3.25)
# What ranks compare holds the files of each vendor: equal for equal folders wherever they lie, another for another body. Texts,
# hidden files and build folders do not count.
file(REMOVE_RECURSE ${BINARY})
foreach(copy IN ITEMS first same other included)
  file(COPY ${ROOT}/tests/override/outside/acme DESTINATION ${BINARY}/${copy})
endforeach()
file(APPEND ${BINARY}/other/acme/scheduler/constant_lr.hpp "// another body\n")
file(WRITE ${BINARY}/included/acme/kernels/body.inc "// another body\n")
file(WRITE ${BINARY}/same/acme/README.md "For readers.\n")
file(WRITE ${BINARY}/same/acme/.git/hook.cpp "no code\n")
file(WRITE ${BINARY}/same/acme/old/CMakeCache.txt "")
file(WRITE ${BINARY}/same/acme/old/CMakeFiles/check.cpp "no code\n")
foreach(link IN ITEMS ".#manifest.hpp" "kernels/.#swiglu.hpp" ".#acme.cmake" ".#more.cpp")  # locks of an editor
  file(CREATE_LINK someone@machine.1 "${BINARY}/same/acme/${link}" SYMBOLIC)
endforeach()
foreach(copy IN ITEMS first same other included)
  set(build ${BINARY}/${copy}/build)
  if(copy STREQUAL "same")  # in the vendor's own folder
    set(build ${BINARY}/same/acme/build)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=MG_FL_PREFER ${CMAKE_COMMAND} -S ${ROOT}/tests/override/choice
    -B ${build} -DMGFL_ROOT=${ROOT} -DMG_FL_PREFER=acme -DMGFL_VENDOR_DIRS=${BINARY}/${copy}/acme -DMGFL_KERNELS=aten
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "configuration failed: ${errors}")
  endif()
  if(output MATCHES "sources: ([^\n]*${BINARY}[^\n]*)")
    message(FATAL_ERROR "acme has no source, but the build would take ${CMAKE_MATCH_1}")
  endif()
  file(STRINGS ${build}/generated/mgfl/generated/override_checks.hpp line REGEX "folder_hashes")
  string(REGEX MATCHALL "0x[0-9a-f]+" ${copy} "${line}")
endforeach()
list(LENGTH first vendors)  # acme, musa, default
list(GET first 0 acme_first)
list(GET other 0 acme_other)
list(GET included 0 acme_included)
list(SUBLIST first 1 2 rest_first)
list(SUBLIST other 1 2 rest_other)
if(NOT vendors EQUAL 3 OR NOT first STREQUAL same OR acme_first STREQUAL acme_other OR NOT rest_first STREQUAL rest_other
   OR acme_first STREQUAL acme_included)
  message(FATAL_ERROR "hashes of the chain: first ${first}, the same folder ${same}, another body ${other}, with an .inc ${included}")
endif()
