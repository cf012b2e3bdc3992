"""Options that link code of this machine's g++ against an older glibc and libstdc++.

nvcc refuses zig's C++ library, so that its host code is compiled by the machine's own g++. The
linker then takes zig's stand-ins for glibc's libraries, which have the symbol versions of the older
glibc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# g++ 11 and newer call this function, which an older libstdc++ lacks.
SHIM = """#include <new>
namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() {
  throw bad_array_new_length();
}
}  // namespace std
"""


def linker_options(zig: Path, target: str, folder: Path) -> list[str]:
    """Writes the stand-ins into a folder; returns the options that name them.

    Args:
        zig: the compiler
        target: as zig names it, such as "x86_64-linux-gnu.2.28"
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cache = folder / "zig"
    source = folder / "empty.c"
    source.write_text("int bridge_empty(void) { return 0; }\n")
    command = [
        str(zig),
        "cc",
        "-target",
        target,
        "-shared",
        str(source),
        "-o",
        f"{folder}/empty.so",
    ]
    caches = {name: str(cache) for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    subprocess.run(command, check=True, env=os.environ | caches)
    (libc,) = cache.glob("o/*/libc.so.6")
    for path in libc.parent.glob("lib*.so.*"):
        shutil.copy(path, folder)
        (folder / path.name.partition(".so")[0]).with_suffix(".so").symlink_to(path.name)
    # Like glibc's own libc.so, a list of libraries: `atexit` is in a static one.
    (folder / "libc.so").unlink()
    found = subprocess.run(
        ["g++", "-print-file-name=libc_nonshared.a"], check=True, capture_output=True, text=True
    ).stdout.strip()
    loader = f"AS_NEEDED ( {folder}/libld.so.2 )"
    (folder / "libc.so").write_text(f"GROUP ( {folder}/libc.so.6 {found} {loader} )\n")
    shim = folder / "shim.cpp"
    shim.write_text(SHIM)
    compiled = shim.with_suffix(".o")
    subprocess.run(["g++", "-O2", "-fPIC", "-c", str(shim), "-o", str(compiled)], check=True)
    return [f"-L{folder}", str(compiled)]
