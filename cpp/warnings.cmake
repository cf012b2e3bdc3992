# What compilers are to warn of. A warning ends the build only where BRIDGE_WERROR says so, as CI
# does: a compiler newer than those that were tried must not.
option(BRIDGE_WERROR "Compiler warnings are errors" OFF)
set(BRIDGE_WARNINGS -Wall -Wextra)
set(BRIDGE_CUDA_WARNINGS -Xcompiler=-Wall,-Wextra)
if(BRIDGE_WERROR)
  list(APPEND BRIDGE_WARNINGS -Werror)
  list(APPEND BRIDGE_CUDA_WARNINGS --Werror=all-warnings -Xcompiler=-Werror)
endif()
