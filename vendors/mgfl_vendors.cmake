# Vendors: who exists, which one this build prefers, which kernel set ends its chain, and the generated header that carries
# the choice. A vendor is a folder with a manifest.hpp and any tree of .hpp and .cpp files; docs/add_a_vendor.md.
include_guard(GLOBAL)

set(MGFL_GENERATED_DIR ${CMAKE_CURRENT_BINARY_DIR}/generated)
get_filename_component(MGFL_ROOT_DIR ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
include(${CMAKE_CURRENT_LIST_DIR}/mgfl_vendor_text.cmake)

set(MG_FL_PREFER "$ENV{MG_FL_PREFER}" CACHE STRING "Vendor whose overrides this build prefers; empty: default")
set(MGFL_VENDOR_DIRS "" CACHE STRING "Folders of vendors outside vendors/, each with a manifest.hpp; semicolons between, relative ones from mgfl's root")
set(MGFL_KERNELS "auto" CACHE STRING "Kernel set at the end of every chain: auto, aten, or a folder such as x86 or cuda")
set_property(CACHE MGFL_KERNELS PROPERTY STRINGS auto aten x86 cuda)

# Words that cannot name a vendor's tag: the core's own names, C++'s words, and macros of its headers.
set(_mgfl_taken_names
  original aten auto preferred kernel_set known known_kernel_sets chain default_ list manifest implementation fallback name
  mgfl std targets vendors
  alignas alignof and and_eq asm bitand bitor bool break case catch char char8_t char16_t char32_t class co_await co_return
  co_yield compl concept const const_cast consteval constexpr constinit continue decltype delete do double dynamic_cast else
  enum explicit export extern false final float for friend goto if import inline int long module mutable namespace new
  noexcept not not_eq nullptr operator or or_eq override private protected public register reinterpret_cast requires return
  short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
  typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq
  errno i386 linux stderr stdin stdout unix)

# strips and lower-cases a name, as the program does with the environment variable
function(_mgfl_plain_name text out)
  string(STRIP "${text}" text)
  string(TOLOWER "${text}" text)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# the C++ tag of a vendor: its name, but for `default`, which is a keyword
function(_mgfl_vendor_tag name out)
  if(name STREQUAL "default")
    set(name default_)
  endif()
  set(${out} ${name} PARENT_SCOPE)
endfunction()

# Reads a manifest's `using fallback = X;` (comments skipped). The compiler checks that it reads the same.
function(_mgfl_read_fallback manifest out)
  file(STRINGS "${manifest}" lines REGEX "using[ \t]+fallback[ \t]*=")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "//.*" "" line "${line}")
    if(line MATCHES "using[ \t]+fallback[ \t]*=[ \t]*(mgfl::)?(vendors::)?([A-Za-z0-9_]+)[ \t]*;")
      set(found "${CMAKE_MATCH_3}")
      if(found STREQUAL "default")
        message(FATAL_ERROR "mgfl: ${manifest} says `using fallback = default;`, and vendor default's tag is default_.\n"
          "  Write `using fallback = default_;`.")
      endif()
      string(REGEX REPLACE "^default_$" "default" found "${found}")
      set(${out} ${found} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "mgfl: ${manifest} names no fallback.\n"
    "  Write `using fallback = default_;` on one line in the vendor's tag (`original` for a kernel set).")
endfunction()

# Finds every vendor; sets in the caller's scope: mgfl_vendors (vendors one can prefer), mgfl_kernel_sets, and for each of
# both mgfl_dir_NAME and mgfl_fallback_NAME.
macro(_mgfl_find_vendors)
  file(GLOB _manifests CONFIGURE_DEPENDS ${MGFL_ROOT_DIR}/vendors/*/manifest.hpp)
  foreach(_dir IN LISTS MGFL_VENDOR_DIRS)
    if(_dir STREQUAL "")  # as in `/opt/acme;;`
      continue()
    endif()
    get_filename_component(_dir "${_dir}" ABSOLUTE BASE_DIR ${MGFL_ROOT_DIR})
    if(NOT EXISTS "${_dir}/manifest.hpp")
      message(FATAL_ERROR "mgfl: MGFL_VENDOR_DIRS names '${_dir}', which holds no manifest.hpp.\n"
        "  Name the vendor's own folder, e.g. -DMGFL_VENDOR_DIRS=/opt/acme/mgfl/vendors/acme; folders are separated by `;`, in quotes.")
    endif()
    list(APPEND _manifests "${_dir}/manifest.hpp")
  endforeach()
  get_property(_dirs GLOBAL PROPERTY mgfl_added_vendors)  # mgfl_add_vendor.cmake
  foreach(_dir IN LISTS _dirs)
    list(APPEND _manifests "${_dir}/manifest.hpp")
  endforeach()
  list(REMOVE_DUPLICATES _manifests)

  set(mgfl_vendors "")
  set(mgfl_kernel_sets "")
  foreach(_manifest IN LISTS _manifests)
    get_filename_component(_dir "${_manifest}" DIRECTORY)
    get_filename_component(_name "${_dir}" NAME)
    if(NOT _name MATCHES "^[a-z][a-z0-9_]*$" OR _name IN_LIST _mgfl_taken_names)
      message(FATAL_ERROR "mgfl: '${_name}' cannot name a vendor (${_dir}).\n"
        "  The folder's name becomes a C++ tag: lower-case letters, digits and _, no word of C++ and none of the core's own names.")
    endif()
    if(DEFINED mgfl_dir_${_name})
      message(FATAL_ERROR "mgfl: two folders are named vendor '${_name}': ${mgfl_dir_${_name}} and ${_dir}.\n  Rename one.")
    endif()
    set(mgfl_dir_${_name} "${_dir}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_manifest}")
    if(_name STREQUAL "default")  # its fallback is the kernel set
      list(PREPEND mgfl_vendors default)
      continue()
    endif()
    _mgfl_read_fallback("${_manifest}" mgfl_fallback_${_name})
    if(mgfl_fallback_${_name} STREQUAL "original")
      list(APPEND mgfl_kernel_sets ${_name})
    else()
      list(APPEND mgfl_vendors ${_name})
    endif()
  endforeach()
  list(SORT mgfl_kernel_sets)
  list(REMOVE_ITEM mgfl_vendors default)
  list(SORT mgfl_vendors)
  list(PREPEND mgfl_vendors default)
endmacro()

# The preferred vendor's name, after every check. A refused value that came from the environment leaves the cache, so that the next
# configuration may do without it; what was given with -D stays, as always.
function(_mgfl_read_preference out)
  set(given "${MG_FL_PREFER}")
  _mgfl_plain_name("${given}" preferred)
  _mgfl_plain_name("$ENV{MG_FL_PREFER}" environment)
  if(preferred STREQUAL "")
    set(preferred default)
  endif()
  list(JOIN mgfl_vendors ", " known)
  if(NOT preferred IN_LIST mgfl_vendors AND environment STREQUAL preferred)
    unset(MG_FL_PREFER CACHE)
  endif()
  if(preferred IN_LIST mgfl_kernel_sets)
    message(FATAL_ERROR "mgfl: MG_FL_PREFER='${given}' names a kernel set, not a vendor.\n"
      "  Known vendors: ${known}\n"
      "  Choose a kernel set with -DMGFL_KERNELS=${preferred}; a vendor's manifest says `using fallback = default_;`.")
  endif()
  if(NOT preferred IN_LIST mgfl_vendors)
    message(FATAL_ERROR "mgfl: MG_FL_PREFER='${given}' names no vendor.\n"
      "  Known vendors: ${known}\n"
      "  To add one that lives elsewhere: -DMGFL_VENDOR_DIRS=/path/to/${preferred}")
  endif()
  if(NOT environment STREQUAL "" AND NOT environment STREQUAL preferred)  # "off" and "0" are words, too
    message(WARNING "mgfl: MG_FL_PREFER='${environment}' in the environment, but this build folder is configured for vendor "
      "'${preferred}', and its programs will refuse to start with that variable.\n"
      "  Configure with -DMG_FL_PREFER=${environment}, or unset the variable.")
  endif()
  set(${out} ${preferred} PARENT_SCOPE)
endfunction()

# The kernel set's name (a folder), or `original` where ATen's kernels are all there is.
function(_mgfl_read_kernels out)
  set(given "${MGFL_KERNELS}")
  _mgfl_plain_name("${given}" kernels)
  set(x86_machine OFF)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    set(x86_machine ON)
  endif()
  if(kernels STREQUAL "" OR kernels STREQUAL "auto")
    set(kernels aten)
    if(x86_machine AND "x86" IN_LIST mgfl_kernel_sets)
      set(kernels x86)
    endif()
  endif()
  list(JOIN mgfl_kernel_sets ", " known)
  if(kernels STREQUAL "aten")
    set(kernels original)
  elseif(kernels IN_LIST mgfl_vendors)
    message(FATAL_ERROR "mgfl: MGFL_KERNELS='${given}' names a vendor, not a kernel set.\n"
      "  Known kernel sets: auto, aten, ${known}\n"
      "  Choose a vendor with -DMG_FL_PREFER=${kernels}; a kernel set's manifest says `using fallback = original;`.")
  elseif(NOT kernels IN_LIST mgfl_kernel_sets)
    message(FATAL_ERROR "mgfl: MGFL_KERNELS='${given}' names no kernel set.\n"
      "  Known kernel sets: auto, aten, ${known}\n"
      "  To add one that lives elsewhere: -DMGFL_VENDOR_DIRS=/path/to/${kernels} (its manifest says `using fallback = original;`)")
  elseif(kernels STREQUAL "x86" AND NOT x86_machine)
    message(FATAL_ERROR "mgfl: MGFL_KERNELS=x86, but this build is for '${CMAKE_SYSTEM_PROCESSOR}'.\n"
      "  Use -DMGFL_KERNELS=auto or -DMGFL_KERNELS=aten.")
  endif()
  set(${out} ${kernels} PARENT_SCOPE)
endfunction()

# preferred -> its fallbacks -> default -> kernel set: the vendors whose override headers and sources this build takes.
function(_mgfl_walk_chain preferred kernels out)
  set(chain "")
  set(vendor ${preferred})
  while(NOT vendor STREQUAL "default")
    if(vendor IN_LIST chain)
      list(JOIN chain " -> " walked)
      message(FATAL_ERROR "mgfl: the fallbacks of vendor '${preferred}' run in a circle: ${walked} -> ${vendor}.\n"
        "  Let one of them say `using fallback = default_;`.")
    endif()
    list(APPEND chain ${vendor})
    set(next ${mgfl_fallback_${vendor}})
    if(next IN_LIST mgfl_kernel_sets OR next STREQUAL "aten")
      message(FATAL_ERROR "mgfl: vendor '${vendor}' falls back to '${next}', which is a kernel set, not a vendor.\n"
        "  Write `using fallback = default_;` in ${mgfl_dir_${vendor}}/manifest.hpp: after default comes the kernel set that "
        "-DMGFL_KERNELS chooses.")
    endif()
    if(NOT next IN_LIST mgfl_vendors)
      list(JOIN mgfl_vendors ", " known)
      message(FATAL_ERROR "mgfl: vendor '${vendor}' falls back to '${next}', which is no vendor of this build.\n"
        "  Known vendors: ${known}\n"
        "  Add its folder to -DMGFL_VENDOR_DIRS, or correct ${mgfl_dir_${vendor}}/manifest.hpp.")
    endif()
    set(vendor ${next})
  endwhile()
  list(APPEND chain default)
  if(NOT kernels STREQUAL "original")
    list(APPEND chain ${kernels})
  endif()
  set(${out} ${chain} PARENT_SCOPE)
endfunction()

# How a header is written in an #include: from the root for the tree's own, absolute for others.
function(_mgfl_include_line path out)
  string(FIND "${path}" "${MGFL_ROOT_DIR}/" inside)
  if(inside EQUAL 0)
    string(LENGTH "${MGFL_ROOT_DIR}/" skip)
    string(SUBSTRING "${path}" ${skip} -1 path)
  endif()
  set(${out} "#include \"${path}\"\n" PARENT_SCOPE)
endfunction()

# Writes only what changed, so that a new configuration run recompiles nothing by itself.
function(_mgfl_write_if_changed path text)
  set(before "")
  if(EXISTS "${path}")
    file(READ "${path}" before)
  endif()
  if(NOT before STREQUAL text)
    file(WRITE "${path}" "${text}")
  endif()
endfunction()

# A hash of all that a vendor brings to a build, its folder but for *.md and its other sources, as a C++ number; an edit there
# configures anew.
function(_mgfl_hash_folder dir sources out)
  mgfl_find_files("${dir}" "" files)
  list(FILTER files EXCLUDE REGEX "\\.md$")
  foreach(source IN LISTS sources)
    if(EXISTS "${source}")  # else the build generates it
      list(APPEND files "${source}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES files)
  list(SORT files)
  set(text "")
  foreach(file IN LISTS files)
    file(SHA256 "${file}" hash)
    file(RELATIVE_PATH path "${dir}" "${file}")
    string(APPEND text "${path} ${hash}\n")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  string(SHA256 hash "${text}")
  string(SUBSTRING ${hash} 0 16 hash)
  set(${out} "0x${hash}" PARENT_SCOPE)
endfunction()

# mgfl_select_vendor(): reads the options, writes mgfl/generated/{selected_vendor,override_checks,originals,vendor_engines}.hpp below MGFL_GENERATED_DIR, and
# sets MGFL_PREFERRED_VENDOR, MGFL_KERNEL_SET, MGFL_VENDOR_CHAIN, MGFL_VENDOR_SOURCES, MGFL_VENDOR_LIBRARIES and
# MGFL_VENDOR_SCRIPTS for the caller.
function(mgfl_select_vendor)
  _mgfl_find_vendors()
  _mgfl_read_preference(preferred)
  _mgfl_read_kernels(kernels)
  _mgfl_walk_chain(${preferred} ${kernels} chain)
  _mgfl_find_targets()

  set(tags "")
  set(manifests "")
  set(checks "")
  foreach(name IN LISTS mgfl_vendors mgfl_kernel_sets)
    _mgfl_vendor_tag(${name} tag)
    string(APPEND tags "struct ${tag};\n")
    _mgfl_include_line("${mgfl_dir_${name}}/manifest.hpp" line)
    string(APPEND manifests "${line}")
    _mgfl_check_manifest(${name} ${tag} "${mgfl_dir_${name}}/manifest.hpp" mgfl_listed_${name} mgfl_understood_${name})
    string(APPEND checks "static_assert(vendors::${tag}::name == \"${name}\",\n"
      "              \"mgfl: a vendor's tag, its `name` and its folder must agree; the folder is '${name}'.\");\n")
  endforeach()
  set(override_headers "")
  set(override_checks "")
  set(override_hashes "")
  set(engine_headers "")
  set(sources "")
  set(libraries "")
  set(scripts "")
  foreach(name IN LISTS chain)
    _mgfl_vendor_tag(${name} tag)
    _mgfl_check_overrides(${name} ${tag} "${mgfl_dir_${name}}" "${mgfl_listed_${name}}" ${mgfl_understood_${name}} headers asserts)
    get_property(added GLOBAL PROPERTY mgfl_added_sources_${name})
    _mgfl_check_sources(${name} "${mgfl_dir_${name}}" "${added}")
    foreach(header IN LISTS headers)
      _mgfl_include_line("${header}" line)
      string(APPEND override_headers "${line}")
    endforeach()
    string(APPEND override_checks "${asserts}")
    _mgfl_find_engines("${mgfl_dir_${name}}" headers)
    foreach(header IN LISTS headers)
      _mgfl_include_line("${header}" line)
      string(APPEND engine_headers "${line}")
    endforeach()
    _mgfl_hash_folder("${mgfl_dir_${name}}" "${added}" hash)
    list(APPEND override_hashes "${hash}")
    mgfl_find_files("${mgfl_dir_${name}}" "\\.cpp$" found)
    list(APPEND sources ${found} ${added})
    get_property(added GLOBAL PROPERTY mgfl_added_libraries_${name})
    list(APPEND libraries ${added})
    _mgfl_find_scripts("${mgfl_dir_${name}}" found)
    list(APPEND scripts ${found})
  endforeach()
  list(REMOVE_DUPLICATES sources)
  foreach(group IN ITEMS mgfl_vendors mgfl_kernel_sets chain)
    set(${group}_tags "")
    foreach(name IN LISTS ${group})
      _mgfl_vendor_tag(${name} tag)
      list(APPEND ${group}_tags ${tag})
    endforeach()
    list(JOIN ${group}_tags ", " ${group}_tags)
  endforeach()
  _mgfl_vendor_tag(${preferred} preferred_tag)

  string(CONCAT text
    "/// Written by CMake: the vendor and the kernel set of this build, every manifest, and the overrides of the chain in use.\n"
    "#pragma once\n\n"
    "#include \"mgfl/override/target.hpp\"\n\n"
    "namespace mgfl::vendors {\n${tags}}  // namespace mgfl::vendors\n\n"
    "${manifests}\n"
    "namespace mgfl {\n\n"
    "namespace vendors {\n"
    "using preferred = ${preferred_tag};\n"
    "using kernel_set = ${kernels};\n"
    "using known = list<${mgfl_vendors_tags}>;\n"
    "using known_kernel_sets = list<${mgfl_kernel_sets_tags}>;\n"
    "using chain = list<${chain_tags}>;\n"
    "}  // namespace vendors\n\n"
    "template <>\nstruct fallback_of<vendors::default_> {\n  using type = vendors::kernel_set;\n};\n\n"
    "${checks}\n"
    "}  // namespace mgfl\n\n"
    "${override_headers}")
  _mgfl_write_if_changed("${MGFL_GENERATED_DIR}/mgfl/generated/selected_vendor.hpp" "${text}")

  list(JOIN override_hashes ", " override_hashes)
  string(CONCAT text
    "/// Written by CMake: what the override table asks of each override, in sentences that name vendor, target and file; and a hash\n"
    "/// of the files of each vendor of the chain.\n"
    "#pragma once\n\n"
    "#include <cstdint>\n\n"
    "#include \"mgfl/override/dispatch.hpp\"\n"
    "#include <mgfl/generated/originals.hpp>\n\n"
    "namespace mgfl::detail {\ninline constexpr std::uint64_t folder_hashes[] = {${override_hashes}};\n}  // namespace mgfl::detail\n\n"
    "${override_checks}")
  _mgfl_write_if_changed("${MGFL_GENERATED_DIR}/mgfl/generated/override_checks.hpp" "${text}")

  set(text "/// Written by CMake: the declaration of every original, for the override table.\n#pragma once\n\n")
  foreach(header IN LISTS mgfl_declarations)
    _mgfl_include_line("${header}" line)
    string(APPEND text "${line}")
  endforeach()
  _mgfl_write_if_changed("${MGFL_GENERATED_DIR}/mgfl/generated/originals.hpp" "${text}")

  _mgfl_write_if_changed("${MGFL_GENERATED_DIR}/mgfl/generated/vendor_engines.hpp"
    "/// Written by CMake: the engines of the vendors in this build's chain.\n#pragma once\n\n${engine_headers}")

  list(JOIN chain " -> " order)
  message(STATUS "mgfl: overrides are looked up in ${order} -> original")
  set(MGFL_PREFERRED_VENDOR ${preferred} PARENT_SCOPE)
  set(MGFL_KERNEL_SET ${kernels} PARENT_SCOPE)
  set(MGFL_VENDOR_CHAIN ${chain} PARENT_SCOPE)
  set_property(GLOBAL PROPERTY mgfl_vendor_selected ON)
  set(MGFL_VENDOR_SOURCES ${sources} PARENT_SCOPE)
  set(MGFL_VENDOR_LIBRARIES ${libraries} PARENT_SCOPE)
  set(MGFL_VENDOR_SCRIPTS ${scripts} PARENT_SCOPE)
endfunction()
