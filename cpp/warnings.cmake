# Warnings of the compilers. They are errors only with BRIDGE_WERROR, as in CI: a compiler newer
# than the tried ones must not fail the build.
option(BRIDGE_WERROR "Compiler warnings are errors" OFF)
set(BRIDGE_WARNINGS -Wall -Wextra)
set(BRIDGE_CUDA_WARNINGS -Xcompiler=-Wall,-Wextra)
if(BRIDGE_WERROR)
  list(APPEND BRIDGE_WARNINGS -Werror)
  list(APPEND BRIDGE_CUDA_WARNINGS --Werror=all-warnings -Xcompiler=-Werror)
endif()
