"""Writes the stored texts anew."""

from __future__ import annotations

from tests.lang.snapshots.programs import FOLDER, texts


def main() -> None:
    written = dict(texts())
    for old in {*FOLDER.glob("*/*.txt")} - written.keys():
        old.unlink()
    for path, text in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    print(f"{len(written)} texts in {FOLDER}")


if __name__ == "__main__":
    main()
