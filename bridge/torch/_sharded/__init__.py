"""The ops on DTensors (docs/sharding.md).

- `dtensor`: who computes what; `shards`: a call on one part, with the bits of the whole; `split`:
  how arrays lie; `rows`: a few rows at a time.
"""
