// Softmax and its Jacobian as machines, kernels written by hand for the programs of
// bridge/catalogue/softmax_programs.py on the CPU.
#ifndef BRIDGE_HAND_WRITTEN_SOFTMAX_MACHINE_H_
#define BRIDGE_HAND_WRITTEN_SOFTMAX_MACHINE_H_

#include "cpu/isa.h"
#include "program/machine.h"

namespace bridge {

struct SoftmaxMachines {
  interpreter::MachineTable softmax, jacobian;  // for every dtype
};

BRIDGE_DECLARE_PER_ISA(SoftmaxMachines, softmax_machines)

}  // namespace bridge

#endif  // BRIDGE_HAND_WRITTEN_SOFTMAX_MACHINE_H_
