// Which instruction set runs. Every op is compiled once for each, into its own namespace, and
// exports a table of function pointers; PerIsa picks the table of the one in use.
#ifndef BRIDGE_CPU_ISA_H_
#define BRIDGE_CPU_ISA_H_

#include <bridge/bridge.h>

namespace bridge {

#if defined(__x86_64__)
constexpr int kIsas = 3;
// Declares, at namespace bridge, the table of each instruction set; lists their addresses.
#define BRIDGE_DECLARE_PER_ISA(Table, name) \
  namespace v4 {                            \
  extern const Table name;                  \
  }                                         \
  namespace v3 {                            \
  extern const Table name;                  \
  }                                         \
  namespace base {                          \
  extern const Table name;                  \
  }
#define BRIDGE_PER_ISA(name) {&v4::name, &v3::name, &base::name}
#elif defined(__aarch64__)
constexpr int kIsas = 1;
#define BRIDGE_DECLARE_PER_ISA(Table, name) \
  namespace base {                          \
  extern const Table name;                  \
  }
#define BRIDGE_PER_ISA(name) {&base::name}
#else
#error "bridge runs on x86-64 and aarch64"
#endif

// The index of the instruction set in use, the strongest being 0; or -1 and this thread's error
// message if BRIDGE_CPU_ISA names one that is unknown or that this processor lacks.
int isa_in_use();

// The same for a call of so many elements. On a processor that has been running narrower code the
// first 512-bit instructions, and what comes after them, cost more than they save on a few hundred
// elements: such a call takes the next narrower set, whose bits are the same. Not so where a set
// was asked for by name.
int isa_for(int64_t elements);

// The tables of one op, strongest instruction set first.
template <class Table>
struct PerIsa {
  const Table* tables[kIsas];

  // Null, with the error message written, where isa_in_use() fails.
  const Table* for_elements(int64_t elements) const {
    const int isa = isa_for(elements);
    return isa < 0 ? nullptr : tables[isa];
  }
};

}  // namespace bridge

#endif  // BRIDGE_CPU_ISA_H_
