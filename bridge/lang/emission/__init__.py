"""Source of generated kernels: C++ for the CPU, CUDA C++ for the GPU."""
