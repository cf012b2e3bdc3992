// Binding of programs: places the arrays of each role over the rows and the columns of a call.
#include "bindings/calls/program_call.h"

#include <cstdio>

#include "bindings/calls/overlap.h"
#include "program/interpreter.h"
#include "program/program.h"

namespace bridge::bindings {
namespace {

using interpreter::Role;
using interpreter::View;

constexpr size_t kMaxArrays = kMaxOperands + kMaxResults;
// The most leading dimensions, before some are merged.
constexpr int32_t kMaxLeading = 64;
constexpr double kExactHighest = 9007199254740992.0;  // 2^53: exact for whole numbers up to it

// Reads an attribute that must be a whole number from 0 to `highest`.
bool read_whole(const char* name, double value, double highest, int64_t* out, CallError* error) {
  if (value >= 0 && value <= highest) {  // false for NaN
    *out = static_cast<int64_t>(value);
    if (static_cast<double>(*out) == value) return true;
  }
  char text[128];
  std::snprintf(text, sizeof text, "%s is %.17g, expected a whole number from 0 to %.17g", name,
                value, highest);
  return error->set(text);
}

class ProgramBinding final : public InPlaceRule {
 public:
  ProgramBinding(const Arguments& arguments, BoundProgram* out, CallError* error)
      : arguments_(arguments), out_(out), error_(error) {}

  bool bind() {
    out_->known = arguments_.code.known;
    if (out_->known != nullptr) {
      view_ = out_->known->view;
    } else {
      const char* why = nullptr;
      if (!interpreter::outline(arguments_.code.words, arguments_.code.count, &view_, &why)) {
        return error_->set(std::string("its bytecode cannot be read: ") + why);
      }
    }
    if (!collect() || !read_space()) return false;
    bridge_program& call = *out_;
    call = {};
    call.code = arguments_.code.words;
    call.words = arguments_.code.count;
    call.cols = cols_;
    if (!read_whole("index_cols", arguments_.attributes[1], kExactHighest, &call.index_cols,
                    error_)) {
      return false;
    }
    if (call.index_cols == 0) call.index_cols = cols_;
    for (size_t i = 0; i < count_; ++i) {
      if (!read(i)) return false;
    }
    if (!walk()) return false;
    call.operands = view_.header.operands;
    call.results = view_.header.results;
    call.operand = out_->operand_arrays;
    call.result = out_->result_arrays;
    return arguments_.results_are_fresh || check_memory();
  }

 private:
  bool is_result(size_t i) const { return i >= operands_; }
  Role role_of(size_t i) const {
    return is_result(i) ? view_.result_role(static_cast<int32_t>(i - operands_))
                        : view_.operand_role(static_cast<int32_t>(i));
  }
  int32_t block_of(size_t i) const {
    return is_result(i) ? view_.result_block(static_cast<int32_t>(i - operands_))
                        : view_.operand_block(static_cast<int32_t>(i));
  }
  bool has_pairs(size_t i) const {
    return is_result(i) ? view_.result_has_pairs(static_cast<int32_t>(i - operands_))
                        : view_.operand_has_pairs(static_cast<int32_t>(i));
  }
  std::string name_of(size_t i) const {
    return is_result(i) ? "result " + std::to_string(i - operands_)
                        : "operand " + std::to_string(place_[i]);
  }
  bridge_program_array& array_of(size_t i) const {
    return is_result(i) ? out_->result_arrays[i - operands_] : out_->operand_arrays[i];
  }

  // Collects the present arrays: those of the program, in its order.
  bool collect() {
    const auto take = [&](const Operand* from, size_t count) {
      for (size_t i = 0; i < count; ++i) {
        if (!from[i].present) continue;
        if (count_ < kMaxArrays) {
          place_[count_] = static_cast<int32_t>(i);
          arrays_[count_] = &from[i];
        }
        ++count_;
      }
    };
    take(arguments_.operands, arguments_.operand_count);
    operands_ = count_;
    take(arguments_.results, arguments_.result_count);
    const auto expected_operands = static_cast<size_t>(view_.header.operands);
    const auto expected_results = static_cast<size_t>(view_.header.results);
    if (operands_ == expected_operands && count_ - operands_ == expected_results) return true;
    return error_->set(std::to_string(operands_) + " operands and " +
                       std::to_string(count_ - operands_) + " results, expected " +
                       std::to_string(expected_operands) + " and " +
                       std::to_string(expected_results));
  }

  bool read_space() {
    const Operand& first = *arrays_[0];
    const bool halves = role_of(0) == Role::halves;
    int64_t batch_ndim = 0;
    if (!read_whole("batch_ndim", arguments_.attributes[0], first.ndim, &batch_ndim, error_)) {
      return false;
    }
    batch_ndim_ = static_cast<int32_t>(batch_ndim);
    has_columns_ = first.ndim > batch_ndim_;
    leading_ = has_columns_ ? first.ndim - 1 : first.ndim;
    if (leading_ > kMaxLeading) return error_->set(name_of(0) + " has too many dimensions");
    cols_ = has_columns_ ? first.shape[leading_] : 1;
    if (halves && (!has_columns_ || cols_ % 2 != 0)) {
      return error_->set(name_of(0) + " has shape " + describe_shape(first) +
                         ", expected two halves of one size in the last dimension");
    }
    if (halves) cols_ /= 2;
    return true;
  }

  // Returns the size of leading dimension d.
  int64_t size_of(int32_t d) const { return arrays_[0]->shape[d]; }

  bool wrong_shape(size_t i) const {
    return error_->set(name_of(i) + " has shape " + describe_shape(*arrays_[i]) +
                       ", which does not fit " + name_of(0) + "'s " + describe_shape(*arrays_[0]) +
                       " with " + std::to_string(batch_ndim_) + " batch dimensions");
  }

  // Reads dtype, device and shape of an array, and its strides over the leading dimensions.
  bool read(size_t i) {
    const Operand& own = *arrays_[i];
    const Role role = role_of(i);
    bridge_program_array& array = array_of(i);
    array.data = address_of(own);
    array.dtype = own.dtype;
    array.pairs = 0;
    array.col_stride = 0;
    for (int32_t d = 0; d < leading_; ++d) stride_[i][d] = 0;
    if (!same_device(own, *arrays_[0])) {
      return error_->set(name_of(i) + " is not on the device of " + name_of(0));
    }
    if (is_result(i) && own.read_only) return error_->set(name_of(i) + " is read-only");
    int64_t compact[kMaxLeading + 2];  // strides of an array that states none
    if (own.ndim > leading_ + 2) return wrong_shape(i);
    int64_t elements = 1;
    for (int32_t d = own.ndim - 1; d >= 0; --d) {
      compact[d] = elements;
      elements *= own.shape[d];
    }
    const int64_t* const strides = own.strides != nullptr ? own.strides : compact;
    // Takes dimensions [first, last) of the array as leading dimensions of the call, from `from`
    // on.
    const auto lead = [&](int32_t first, int32_t last, int32_t from) {
      for (int32_t d = first; d < last; ++d) {
        const int32_t at = from + d - first;
        if (own.shape[d] != size_of(at)) return false;
        stride_[i][at] = strides[d];
      }
      return true;
    };
    const auto has_columns = [&](int64_t cols) {
      if (own.ndim == leading_ && !has_columns_) return true;
      array.col_stride = strides[own.ndim - 1];
      return own.shape[own.ndim - 1] == cols;
    };
    bool fits = false;
    switch (role) {
      case Role::full:
        fits = (own.ndim == leading_ + 1 || arrays_[0]->ndim == own.ndim) && has_columns(cols_) &&
               lead(0, leading_, 0);
        break;
      case Role::halves:
      case Role::pairs:
        fits = own.ndim == leading_ + 1 && has_columns(2 * cols_) && lead(0, leading_, 0);
        array.pairs = has_pairs(i) ? 1 : 0;
        array.col_stride *= 1 + array.pairs;
        break;
      case Role::per_block:
        array.pairs = block_of(i);
        fits = own.ndim == leading_ + 1 && cols_ % array.pairs == 0 &&
               has_columns(cols_ / array.pairs) && lead(0, leading_, 0);
        break;
      case Role::row:
        fits = own.ndim == batch_ndim_ + 1 && has_columns(cols_) && lead(0, batch_ndim_, 0);
        break;
      case Role::per_row:
      case Role::label:
        fits = own.ndim == leading_ && lead(0, leading_, 0);
        break;
      case Role::integer:
        fits = read_integer(i, strides);
        if (!fits && error_->message.empty()) break;
        if (!fits) return false;
        fits = lead(0, batch_ndim_, 0);
        if (own.dtype == BRIDGE_UINT32) {
          for (int32_t d = 0; d < batch_ndim_; ++d) stride_[i][d] /= 2;
        }
        break;
      case Role::table:
      case Role::mask:
        fits = broadcasts(i, strides);
        break;
    }
    return fits || wrong_shape(i);
  }

  // Reads an integer operand: int64 [*batch], or uint32 [*batch, 2] with the low word first, which
  // has the same memory.
  bool read_integer(size_t i, const int64_t* strides) const {
    const Operand& own = *arrays_[i];
    const bool in_words = own.dtype == BRIDGE_UINT32;
    if (!in_words && own.dtype != BRIDGE_INT64) {
      return error_->set(name_of(i) + " has dtype " + describe_dtype(own.dtype) +
                         ", expected int64, or uint32 in pairs");
    }
    if (own.ndim != batch_ndim_ + (in_words ? 1 : 0)) return false;
    if (in_words) {
      if (own.shape[batch_ndim_] != 2) return false;
      bool readable = strides[batch_ndim_] == 1;
      for (int32_t d = 0; d < batch_ndim_; ++d) readable = readable && strides[d] % 2 == 0;
      if (!readable) {
        error_->unreadable = place_[i];
        return error_->set(name_of(i) + " has strides that the kernels do not support");
      }
    }
    array_of(i).dtype = BRIDGE_INT64;
    if (reinterpret_cast<uintptr_t>(address_of(own)) % sizeof(int64_t) == 0) return true;
    return error_->set(name_of(i) + " is not aligned in memory to 8 bytes");
  }

  bool broadcasts(size_t i, const int64_t* strides) {
    const Operand& own = *arrays_[i];
    const int32_t dims = has_columns_ ? leading_ + 1 : leading_;
    if (own.ndim > dims) return false;
    for (int32_t d = 0; d < own.ndim; ++d) {
      const int32_t at = dims - own.ndim + d;
      const int64_t expected = at == leading_ ? cols_ : size_of(at);
      if (own.shape[d] != 1 && own.shape[d] != expected) return false;
      const int64_t stride = own.shape[d] == 1 ? 0 : strides[d];
      if (at == leading_)
        array_of(i).col_stride = stride;
      else
        stride_[i][at] = stride;
    }
    return true;
  }

  bool draws() const {
    for (int32_t i = 0; i < view_.instructions; ++i) {
      if ((view_.code[i].operation & ~interpreter::kAgain) == interpreter::kKeep) return true;
    }
    return false;
  }

  // Merges leading dimensions that are equally spaced in every array. Batches are not merged with
  // rows if anything belongs to a batch: a column sum, an integer, or the indices of random words.
  bool walk() {
    bool separate = draws();
    for (size_t i = 0; i < count_; ++i) {
      const Role role = role_of(i);
      separate = separate || role == Role::integer || (role == Role::row && is_result(i));
    }
    bridge_program& call = *out_;
    int32_t dims = 0;
    int32_t at[BRIDGE_MAX_DIMS];  // the last dimension of each group
    for (int32_t d = 0; d < leading_; ++d) {
      const bool begins_rows = separate && d == batch_ndim_;
      const int64_t size = size_of(d);
      if (dims > 0 && !begins_rows) {
        bool merges = true;
        for (size_t i = 0; merges && i < count_; ++i) {
          merges = call.size[dims - 1] == 1 ||
                   (size == 1 ? true : stride_[i][at[dims - 1]] == stride_[i][d] * size);
        }
        if (merges) {
          // The stride of a dimension of size 1 has no meaning.
          if (size != 1) at[dims - 1] = d;
          call.size[dims - 1] *= size;
          continue;
        }
      }
      if (dims == BRIDGE_MAX_DIMS) return too_many();
      at[dims] = d;
      call.size[dims] = size;
      ++dims;
      if (separate && d < batch_ndim_) call.batch_dims = dims;
    }
    call.dims = dims;
    for (size_t i = 0; i < count_; ++i) {
      for (int32_t d = 0; d < dims; ++d) array_of(i).stride[d] = stride_[i][at[d]];
    }
    return true;
  }

  // Sets the error for more dimensions than the kernels support. An array is marked as unreadable
  // that makes more dimensions merge once it is compact: an operand, else a mask that repeats, else
  // a result.
  bool too_many() const {
    for (size_t i = 0; i < operands_ && error_->unreadable < 0; ++i) {
      if (!is_compact(*arrays_[i])) error_->unreadable = place_[i];
    }
    for (size_t i = 0; i < operands_ && error_->unreadable < 0; ++i) {
      if (role_of(i) == Role::mask && repeats(*arrays_[i])) error_->unreadable = place_[i];
    }
    for (size_t i = operands_; i < count_ && error_->unreadable < 0; ++i) {
      if (is_compact(*arrays_[i])) continue;
      error_->unreadable = static_cast<int32_t>(arguments_.operand_count) + place_[i];
    }
    return error_->set("the arrays have more than " + std::to_string(BRIDGE_MAX_DIMS) +
                       " dimensions that cannot be merged");
  }

  // Returns true if an element of a mask serves several rows.
  bool repeats(const Operand& own) const {
    const int32_t shift = leading_ + 1 - own.ndim;
    for (int32_t d = 0; d < leading_; ++d) {
      if (size_of(d) != 1 && (d < shift || own.shape[d - shift] != size_of(d))) return true;
    }
    return false;
  }

  bool check_memory() const {
    Footprint footprints[kMaxArrays];
    int64_t sizes[BRIDGE_MAX_DIMS + 2], strides[kMaxArrays][BRIDGE_MAX_DIMS + 2];
    int64_t halves_sizes[BRIDGE_MAX_DIMS + 2];
    const bridge_program& call = *out_;
    const int32_t dims = call.dims;
    for (int32_t d = 0; d < dims; ++d) sizes[d] = halves_sizes[d] = call.size[d];
    sizes[dims] = call.cols;
    halves_sizes[dims] = 2 * call.cols;
    int64_t block_sizes[kMaxArrays][BRIDGE_MAX_DIMS + 2];
    for (int32_t d = 0; d <= dims; ++d) {
      if (sizes[d] == 0) return true;  // there is nothing to share
    }
    for (size_t i = 0; i < count_; ++i) {
      const bridge_program_array& array = array_of(i);
      const Role role = role_of(i);
      const int64_t col_stride = array.pairs == 1 ? array.col_stride / 2 : array.col_stride;
      const bool adjacent = col_stride == 1;
      const bool has_columns =
          role != Role::per_row && role != Role::label && role != Role::integer;
      const int32_t block = role == Role::per_block ? array.pairs : 1;
      const int64_t cols = role == Role::halves ? 2 * call.cols : call.cols / block;
      for (int32_t d = 0; d < dims; ++d) block_sizes[i][d] = call.size[d];
      block_sizes[i][dims] = cols;
      for (int32_t d = 0; d < dims; ++d) strides[i][d] = array.stride[d];
      strides[i][dims] = col_stride;
      int32_t used = has_columns && !adjacent ? dims + 1 : dims;
      if (is_result(i) && role == Role::row) used = call.batch_dims;
      footprints[i] = {is_result(i) ? "a result" : "an operand",
                       array.data,
                       array.dtype,
                       has_columns && adjacent ? cols : 1,
                       used,
                       block > 1              ? block_sizes[i]
                       : role == Role::halves ? halves_sizes
                                              : sizes,
                       strides[i]};
    }
    return check_overlap(footprints + operands_, count_ - operands_, footprints, operands_, *this,
                         error_);
  }

  // A kernel reads and writes pieces of rows, instruction by instruction. So a result can take the
  // place of an operand whose elements are not read after they are stored.
  bool allows(size_t result, size_t operand) const override {
    const size_t place = operands_ + result;
    const Role role = role_of(place);
    if ((role != Role::full && role != Role::halves) || role != role_of(operand) ||
        has_pairs(place) != has_pairs(operand)) {
      return false;
    }
    uint32_t stored = 0;  // a bit for each half
    for (int32_t i = 0; i < view_.instructions; ++i) {
      const interpreter::Instruction& in = view_.code[i];
      const int32_t operation = in.operation & ~interpreter::kAgain;
      if (operation == interpreter::kStore && static_cast<size_t>(in.a) == result) {
        stored |= in.c == 0 ? 1 : 2;
      }
      if (operation == interpreter::kLoad && static_cast<size_t>(in.a) == operand &&
          (stored & (in.b == 0 ? 1 : 2)) != 0) {
        return false;
      }
    }
    return true;
  }

  const Arguments& arguments_;
  BoundProgram* const out_;
  CallError* const error_;
  View view_;
  size_t count_ = 0, operands_ = 0;
  const Operand* arrays_[kMaxArrays];
  int32_t place_[kMaxArrays];
  int32_t leading_ = 0, batch_ndim_ = 0;
  bool has_columns_ = true;  // false: each batch is one number
  int64_t cols_ = 0;
  int64_t stride_[kMaxArrays][kMaxLeading];
};

}  // namespace

bool bind(const Arguments& arguments, BoundProgram* call, CallError* error) {
  if (arguments.operand_count < 1 || arguments.operand_count > kMaxOperands) {
    return error->set(std::to_string(arguments.operand_count) + " operands, expected 1 to " +
                      std::to_string(kMaxOperands));
  }
  if (arguments.attribute_count != kAttributes) {
    return error->set(std::to_string(arguments.attribute_count) + " attributes, expected " +
                      std::to_string(kAttributes));
  }
  return ProgramBinding(arguments, call, error).bind();
}

int64_t elements_of(const BoundProgram& call) {
  int64_t rows = 1;
  for (int32_t d = 0; d < call.dims; ++d) rows *= call.size[d];
  return rows * (call.cols > 0 ? call.cols : 1);
}

}  // namespace bridge::bindings
