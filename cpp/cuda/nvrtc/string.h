// See stdint.h. NVRTC knows memcpy by itself.
