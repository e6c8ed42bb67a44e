# For a project that adds mgfl with add_subdirectory and brings a vendor: include this file, and before add_subdirectory(mgfl) call
#   mgfl_add_vendor(NAME DIR [SOURCES file...] [LIBRARIES library...])
# DIR: the vendor's folder, as in MGFL_VENDOR_DIRS, whose last part is NAME. SOURCES: what the target mgfl compiles besides the
# folder's *.cpp, relative to DIR or absolute. LIBRARIES: what it links publicly. Both count where the vendor is in the chain of
# this build; MG_FL_PREFER chooses it as any other.
include_guard(GLOBAL)

function(mgfl_add_vendor name dir)
  cmake_parse_arguments(PARSE_ARGV 2 given "" "" "SOURCES;LIBRARIES")
  if(DEFINED given_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "mgfl: mgfl_add_vendor(${name}) does not know '${given_UNPARSED_ARGUMENTS}'.\n"
      "  Write mgfl_add_vendor(NAME DIR [SOURCES file...] [LIBRARIES library...]).")
  endif()
  get_property(selected GLOBAL PROPERTY mgfl_vendor_selected)
  if(selected)
    message(FATAL_ERROR "mgfl: mgfl_add_vendor(${name}) comes too late: mgfl is configured already.\n"
      "  Call it before add_subdirectory(mgfl).")
  endif()
  get_filename_component(dir "${dir}" ABSOLUTE)
  if(NOT EXISTS "${dir}/manifest.hpp")
    message(FATAL_ERROR "mgfl: mgfl_add_vendor(${name}) names '${dir}', which holds no manifest.hpp.\n"
      "  Name the vendor's own folder; a relative one counts from the calling CMakeLists.txt.")
  endif()
  get_filename_component(folder "${dir}" NAME)
  if(NOT folder STREQUAL "${name}")
    message(FATAL_ERROR "mgfl: mgfl_add_vendor(${name}) names '${dir}', and the folder's name is the vendor's.\n"
      "  Write mgfl_add_vendor(${folder} ...), or rename the folder.")
  endif()
  set_property(GLOBAL APPEND PROPERTY mgfl_added_vendors "${dir}")
  foreach(source IN LISTS given_SOURCES)
    get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${dir}")
    set_property(GLOBAL APPEND PROPERTY mgfl_added_sources_${name} "${source}")
  endforeach()
  set_property(GLOBAL APPEND PROPERTY mgfl_added_libraries_${name} ${given_LIBRARIES})
endfunction()
