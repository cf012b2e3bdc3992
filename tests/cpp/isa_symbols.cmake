# Objects compiled for one instruction set must define only symbols in its namespace. Code for every
# processor could be linked to a shared inline function in them.
#
#   cmake -DNM=nm -DISA=v4 "-DOBJECTS=a.o;b.o" -P isa_symbols.cmake
execute_process(COMMAND ${NM} -C --defined-only --extern-only ${OBJECTS}
                OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[0-9a-f]+ [A-Zuvw] [^\n]*" symbols "${symbols}")
list(LENGTH symbols count)
if(count EQUAL 0)
  message(FATAL_ERROR "no symbols found in ${OBJECTS}")
endif()
foreach(symbol IN LISTS symbols)
  if(NOT symbol MATCHES "^[0-9a-f]+ [A-Z] bridge::${ISA}::")
    message(FATAL_ERROR "outside of bridge::${ISA}: ${symbol}")
  endif()
endforeach()
