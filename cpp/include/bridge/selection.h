/* The choice of columns, in the style of bridge.h. */
#ifndef BRIDGE_SELECTION_H_
#define BRIDGE_SELECTION_H_

#include <bridge/bridge.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Columns of each row of x. All arrays are compact; the result overlaps none of the others.
 *
 * Without words, the columns of the `count` largest numbers, at most 64, in falling order. NaN is
 * above all numbers, zeros are equal, and equal numbers come in the order of their columns.
 *
 * With words, one column drawn from the softmax of x / temperature, count being 1. The draw is from
 * the top_k largest numbers (0: from all); of these from the fewest most probable whose part in the
 * sum of their probabilities is at least top_p; of these from those whose probability is at least
 * min_p times the largest. Equal numbers count in the order of their columns. A row's words are its
 * seed and its offset, low words first: column j takes word j mod 4 of Philox4x32-10 with the key
 * `seed` and the counter (j / 4, offset), as u = (word + 1/2) / 2^32, and the column is that of the
 * largest sum of x / temperature and -log(-log(u)), all in float64. Temperature 0 gives the first
 * column with the largest number. A row with NaN, or with nothing but -infinity, gives -1. With a
 * top_p below 1 a row has at most 2^23 columns. */
typedef struct bridge_selection {
  int64_t rows, cols, count;
  int32_t dtype;       /* bridge_dtype, floating: of x */
  int32_t index_dtype; /* BRIDGE_INT32 or BRIDGE_INT64: of the result */
  const void* x;       /* [rows, cols] */
  const void* words;   /* uint32 [rows, 4], or NULL */
  void* result;        /* [rows, count] */
  int64_t top_k;
  double temperature, top_p, min_p;
} bridge_selection;
bridge_status bridge_selection_cpu(const bridge_selection* call, const bridge_executor* executor);

/* CUDA (libbridge_cuda, loaded on demand), without a workspace. */
bridge_status bridge_selection_cuda(const bridge_selection* call, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* BRIDGE_SELECTION_H_ */
