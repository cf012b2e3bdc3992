// See stdint.h. NVRTC knows size_t by itself.
