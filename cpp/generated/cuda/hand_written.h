// Kernels written by hand for some programs on CUDA. cmake/write_ahead_of_time.py writes the table
// of the programs.
#ifndef BRIDGE_GENERATED_CUDA_HAND_WRITTEN_H_
#define BRIDGE_GENERATED_CUDA_HAND_WRITTEN_H_

#include <bridge/bridge.h>

#include <string>

#include "program/program.h"

namespace bridge::interpreter {

// The kernels of one or more programs. A call is complete and valid.
struct HandKernel {
  // Returns true if the kernels take a call with these strides and sizes on the current device.
  bool (*takes)(const bridge_program& call, const View& view);
  // Enqueues a call that is taken; it needs no workspace. Returns NULL or the error.
  const char* (*enqueue)(const bridge_program& call, const View& view, void* stream);
  // Loads all kernels onto the current device; returns NULL or the error.
  const char* (*load)();
};

struct HandWrittenProgram {
  const int32_t* words;
  int64_t count;
  const int32_t* dtypes;  // of operands, then of results
  int32_t parameters;     // the number of first constants that are read from a call's bytecode
  const HandKernel* kernel;
};

struct HandWrittenPrograms {
  const HandWrittenProgram* programs;
  int count;
};

HandWrittenPrograms hand_written_programs();

// Returns the kernel that takes a call on the current device, and counts the call; NULL if there is
// none. Thread-safe.
const HandKernel* hand_kernel(const bridge_program& call, const View& view);

// Enqueues a call that the kernel takes.
bridge_status enqueue_by_hand(const HandKernel& kernel, const bridge_program& call,
                              const View& view, void* stream);

// Loads all of these kernels onto the current device; returns NULL or the error.
const char* load_hand_kernels();

// Compares the kernels with the interpreter on the current device, by its number. Calls of a
// program with another bit go to other kernels from then on, and stderr tells of it.
void verify_hand_kernels(int device);

// Compares the kernels of one program; returns "" or a message.
std::string verified_by_hand(const HandWrittenProgram& program);

// Returns how many calls have got a kernel.
int64_t hand_kernel_calls();

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_HAND_WRITTEN_H_
