cmake_minimum_required(VERSION 3.25)
# Links one small program against this build's libmgfl: with its own generated header it must link, with the header of another
# vendor, kernel set or manifest it must not, and the linker's message must name the reason.
file(MAKE_DIRECTORY ${BINARY})
file(WRITE ${BINARY}/program.cpp "#include \"mgfl/override/dispatch.hpp\"\nint main() {}\n")

function(link generated)
  execute_process(
    COMMAND ${COMPILER} -std=c++20 -I${ROOT}/include -I${ROOT} -I${generated} ${BINARY}/program.cpp ${LIBRARY} -o ${BINARY}/program
    RESULT_VARIABLE status ERROR_VARIABLE errors)
  set(status ${status} PARENT_SCOPE)
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

function(expect_mixed what generated)
  link(${generated})
  if(status EQUAL 0 OR NOT errors MATCHES "program_and_libmgfl_were_built_for_different_vendors")
    message(FATAL_ERROR "a program with another ${what} must not link; status ${status}, ${errors}")
  endif()
endfunction()

function(configure name)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=MG_FL_PREFER ${CMAKE_COMMAND} -S ${ROOT}/tests/override/choice -B ${BINARY}/${name}
      -DMGFL_ROOT=${ROOT} ${ARGN}
    COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
endfunction()

link(${OWN})
if(NOT status EQUAL 0)
  message(FATAL_ERROR "a program of this build must link: ${errors}")
endif()
set(other musa)
if(PREFERRED STREQUAL "musa")
  set(other default)
endif()
configure(vendor -DMG_FL_PREFER=${other} -DMGFL_KERNELS=${KERNELS})
expect_mixed(vendor ${BINARY}/vendor/generated)
if(NOT KERNELS STREQUAL "aten")
  configure(kernels -DMG_FL_PREFER=${PREFERRED} -DMGFL_KERNELS=aten)
  expect_mixed("kernel set" ${BINARY}/kernels/generated)
endif()

# the same vendor, with a manifest that lists less
file(MAKE_DIRECTORY ${BINARY}/manifest/mgfl/generated ${BINARY}/manifest/vendors/default)
file(READ ${OWN}/mgfl/generated/selected_vendor.hpp header)
string(REGEX REPLACE "#include \"[^\"]*vendors/default/[^\"]*/[^\"]*\"\n" "" header "${header}")
string(REPLACE "#include \"vendors/default/manifest.hpp\"" "#include \"${BINARY}/manifest/vendors/default/manifest.hpp\"" header "${header}")
file(WRITE ${BINARY}/manifest/mgfl/generated/selected_vendor.hpp "${header}")
file(WRITE ${BINARY}/manifest/vendors/default/manifest.hpp "#pragma once\n")
if(PREFERRED STREQUAL "default")
  expect_mixed(manifest ${BINARY}/manifest)
endif()
