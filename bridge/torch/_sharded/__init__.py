"""The ops on DTensors (docs/sharding.md).

- `dtensor`: the rule of each op; `shards`: a call on one part, with the bits of the whole call;
  `split`: the layout of split arrays; `rows`: chunks of rows.
"""
