# Finds headers inside Python packages without importing the packages, which would take seconds and
# can fail in a bare build environment.
function(bridge_find_python_header variable header hint)
  foreach(candidate IN LISTS ARGN)
    string(REPLACE ":" ";" parts ${candidate})
    list(GET parts 0 package)
    list(GET parts 1 folder)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c
              "import importlib.util as u; s = u.find_spec('${package}'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE location OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(location AND EXISTS "${location}/${folder}/${header}")
      message(STATUS "${header} from ${package}: ${location}/${folder}")
      set(${variable} "${location}/${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "${header} was not found: ${hint}")
endfunction()

bridge_find_python_header(BRIDGE_XLA_FFI_INCLUDE xla/ffi/api/ffi.h
  "install jaxlib, whose wheel carries the XLA FFI headers"
  jaxlib:include)

bridge_find_python_header(dlpack_folder dlpack.h
  "install apache-tvm-ffi (or torch 2.11 or newer), which carries dlpack.h 1.3"
  tvm_ffi:include/dlpack torch:include/ATen)
# One spelling, <dlpack/dlpack.h>, for either package.
set(BRIDGE_DLPACK_INCLUDE ${CMAKE_CURRENT_BINARY_DIR}/include)
file(COPY ${dlpack_folder}/dlpack.h DESTINATION ${BRIDGE_DLPACK_INCLUDE}/dlpack)
