// Binding of arrays over [batch, rows, cols] and of row vectors [batch, cols]: the operands of
// bias_gelu and bias_dropout_add.
#ifndef BRIDGE_BORDER_BINDING_PAIR_BINDING_H_
#define BRIDGE_BORDER_BINDING_PAIR_BINDING_H_

#include "border/binding/op.h"
#include "border/binding/overlap.h"

namespace bridge::border {

// What the arrays of a call are held against: the sizes of its input.
class PairBinding {
 public:
  // `name_of` names the operand at a position, or the result at kResult plus its position. What
  // returns false has said in *error why.
  PairBinding(const Operand& input, std::string (*name_of)(size_t position), CallError* error)
      : input_(input), name_of_(name_of), error_(error) {}
  static constexpr size_t kResult = kMaxOperands;

  // The first batch_ndim dimensions of the input have row vectors of their own.
  bool read_sizes(double batch_ndim, int64_t* batch, int64_t* rows, int64_t* cols);

  bool bind_full(const Operand& operand, size_t position, bridge_array* array) const;
  bool bind_row(const Operand& operand, size_t position, bridge_array* array) const;
  bool bind_pair(const Operand& full, const Operand& row, size_t position, bridge_pair* pair) const;

  // int64 [*batch], or uint32 [*batch, 2] with the low word first: the same memory.
  bool bind_integers(const Operand& operand, size_t position, bridge_integers* array) const;

  bool bind_output(const Operand results[2], bridge_pair* output) const;

 private:
  bool bind_array(const Operand& operand, size_t position, bridge_array* array) const;
  bool is_beside_input(const Operand& operand, size_t position) const;
  bool wrong_shape(const Operand& operand, size_t position) const;
  bool unreadable(size_t position) const;

  const Operand& input_;
  std::string (*name_of_)(size_t position);
  CallError* error_;
  int32_t batch_ndim_ = 0;
};

// Where the arrays of a call lie, for the check of overlaps. Absent arrays may be added.
class PairFootprints {
 public:
  PairFootprints(int64_t batch, int64_t rows, int64_t cols)
      : full_size_{batch, rows}, row_size_{batch, 1}, cols_(cols) {}

  void add_full(const bridge_array& array);
  void add_row(const bridge_array& array);
  void add_integers(const bridge_integers& integers);
  // The last to be added: it is held against the others.
  bool check(const bridge_pair& output, CallError* error);

 private:
  void add(const void* data, const char* name, int32_t dtype, int64_t cols, const int64_t* size,
           int64_t batch_stride, int64_t row_stride);
  bool is_empty() const { return full_size_[0] == 0 || full_size_[1] == 0 || cols_ == 0; }

  static constexpr size_t kCapacity = kMaxOperands + 2;
  const int64_t full_size_[2], row_size_[2];
  const int64_t cols_;
  size_t count_ = 0;
  Footprint entries_[kCapacity];
  int64_t strides_[kCapacity][2];
};

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_BINDING_PAIR_BINDING_H_
