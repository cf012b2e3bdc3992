/* Maps between places by tables of taps: pools and resizing, in the style of bridge.h. */
#ifndef BRIDGE_TAPS_H_
#define BRIDGE_TAPS_H_

#include <bridge/bridge.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The result at each output, for each index of `outer` and `inner`, in increasing order of the taps
 * t. The place p of a tap is table[t, output]; -1 is an absent tap, behind the others. An output
 * without taps is 0, except for LARGEST. The arithmetic is double for float64, else float.
 *
 * WEIGHTED   a chain of fma(x[p], weights[t, output], sum), the first a product.
 * AVERAGE    a chain of additions, divided by weights[output].
 * SHARES     a chain of additions of x[p] / weights[t, output].
 * LARGEST    the place of the largest number, the first of equal ones, or the last NaN; the first
 *            tap counts even if it is absent, as place 0. No number is NaN's equal.
 * CHOSEN     x[chosen[output]], place 0 for -1.
 * OF_CHOSEN  0 plus x[q] for each q with chosen[q] == output, in increasing order of q: the places
 *            of x and of `chosen` are the same.
 * ROW_MEAN   the only output: the sum of all places in the tree of sums along a row, divided by
 *            their number. */
typedef enum bridge_taps_kind {
  BRIDGE_TAPS_WEIGHTED = 0,
  BRIDGE_TAPS_AVERAGE = 1,
  BRIDGE_TAPS_SHARES = 2,
  BRIDGE_TAPS_LARGEST = 3,
  BRIDGE_TAPS_CHOSEN = 4,
  BRIDGE_TAPS_OF_CHOSEN = 5,
  BRIDGE_TAPS_ROW_MEAN = 6
} bridge_taps_kind;
/* All arrays are compact; the result overlaps none of the others. */
typedef struct bridge_taps {
  int32_t kind;  /* bridge_taps_kind */
  int32_t dtype; /* bridge_dtype, floating: of x, and of the result but for LARGEST */
  int64_t outer, places, outputs, inner, taps;
  const void* x;         /* [outer, places, inner] */
  const int32_t* table;  /* [taps, outputs] of places, or NULL from CHOSEN on */
  const void* weights;   /* [taps, outputs], or [outputs] for AVERAGE, in the arithmetic's dtype */
  const int32_t* chosen; /* [outer, outputs, inner], or [outer, places, inner] for OF_CHOSEN */
  void* result;          /* [outer, outputs, inner]; int32 for LARGEST */
} bridge_taps;
bridge_status bridge_taps_cpu(const bridge_taps* call, const bridge_executor* executor);

#ifdef __cplusplus
}
#endif

#endif /* BRIDGE_TAPS_H_ */
