# Compile options and libraries of acme's own; included once the target mgfl exists.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/kernels/swiglu.cpp PROPERTIES COMPILE_OPTIONS -O3)
