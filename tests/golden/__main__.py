"""Writes bits.json from torch's results on this machine."""

from __future__ import annotations

import json

from tests.frameworks import FRAMEWORKS
from tests.golden.results import BITS, every, hashes, inputs_of


def main() -> None:
    kept = {
        name: hashes(FRAMEWORKS[0], case, inputs_of(case, dtypes)) for name, case, dtypes in every()
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(kept[name])}" for name in kept)
    BITS.write_text("{\n" + lines + "\n}\n")
    print(f"{len(kept)} cases in {BITS}")


if __name__ == "__main__":
    main()
