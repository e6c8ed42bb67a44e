# Vendors: who exists, which one this build prefers, and the generated header that carries the choice.
set(MGFL_GENERATED_DIR ${CMAKE_CURRENT_BINARY_DIR}/generated)

function(mgfl_write_selected_vendor)
  set(text "// Written by CMake. The vendor and the kernel set of this build.\n#pragma once\n\n")
  string(APPEND text "#include \"vendors/x86/manifest.hpp\"\n\n")
  string(APPEND text "namespace mgfl {\nnamespace vendors {\nusing preferred = default_;\n}\n")
  string(APPEND text "template <>\nstruct fallback_of<vendors::default_> {\n  using type = vendors::x86;\n};\n}  // namespace mgfl\n")
  file(GLOB headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/vendors/x86/kernels/*.hpp)
  foreach(header IN LISTS headers)
    string(APPEND text "#include \"${header}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${MGFL_GENERATED_DIR}/mgfl/generated/selected_vendor.hpp CONTENT "${text}" @ONLY)
endfunction()
