"""The ops on arrays that are split over devices (docs/sharding.md).

- `partitioning`: the sharding rule of a call for XLA, and the program of one shard; `split`: the
  split of an array over mesh axes.
- `shards`: a call on one shard, with the bits of the whole; `row_tree`: sums of rows across shards.
- `word_pairs`: 64-bit integers as two words.
"""
