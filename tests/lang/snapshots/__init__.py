"""The stored texts of some programs, in C++ and in CUDA C++.

A change of the emitters shows in them. `python -m tests.lang.snapshots` writes them anew.
"""
