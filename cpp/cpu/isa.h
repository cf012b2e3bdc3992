// Selection of the CPU instruction set. Every op is compiled once for each set, in a namespace of
// its own, and exports a table of function pointers; PerIsa selects the table for the set in use.
#ifndef BRIDGE_CPU_ISA_H_
#define BRIDGE_CPU_ISA_H_

#include <bridge/bridge.h>

namespace bridge {

#if defined(__x86_64__)
constexpr int kIsas = 3;
// BRIDGE_DECLARE_PER_ISA declares, in namespace bridge, the table of each instruction set.
// BRIDGE_PER_ISA lists their addresses.
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

// Returns the index of the instruction set in use, 0 being the strongest; -1, with this thread's
// error message written, if BRIDGE_CPU_ISA names a set that is unknown or missing on this
// processor.
int isa_in_use();

// Returns the index of the instruction set for a call of `elements` elements. On a processor that
// has been running narrower code, the first 512-bit instructions and the code after them cost more
// than they save on a few hundred elements. Such a call uses the next narrower set, which gives the
// same bits. A set requested by name is always used.
int isa_for(int64_t elements);

// The tables of one op, one for each instruction set, the strongest first.
template <class Table>
struct PerIsa {
  const Table* tables[kIsas];

  // Returns nullptr, with the error message written, if isa_in_use() fails.
  const Table* for_elements(int64_t elements) const {
    const int isa = isa_for(elements);
    return isa < 0 ? nullptr : tables[isa];
  }
};

}  // namespace bridge

#endif  // BRIDGE_CPU_ISA_H_
