"""The ops on arrays that are split over devices (docs/sharding.md).

- `partitioning`: what XLA is told of a call, and the program of one shard; `split`: how arrays lie.
- `shards`: a call on one shard, with the bits of the whole; `row_tree`: sums that shards share.
- `word_pairs`: 64-bit integers as two words.
"""
