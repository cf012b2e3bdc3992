// Writes that bypass the caches. Include this only in files that are compiled once for each
// instruction set. A store of a whole line does not read the line from memory first.
#ifndef BRIDGE_CPU_STREAM_H_
#define BRIDGE_CPU_STREAM_H_

#ifndef BRIDGE_ISA_NAMESPACE
#error "cpu/stream.h belongs to files compiled for one instruction set"
#endif

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

constexpr int64_t kLine = 64;

#if defined(__AVX512F__)
inline void stream_line(char* to, const char* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
#elif defined(__AVX__)
inline void stream_line(char* to, const char* from) {
  for (int i = 0; i < 64; i += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
}
#elif defined(__SSE2__)
inline void stream_line(char* to, const char* from) {
  for (int i = 0; i < 64; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
}
#else
inline void stream_line(char* to, const char* from) { memcpy(to, from, kLine); }
#endif

// Copies like memcpy. Other threads see the written bytes after end_stream().
inline void stream(void* to, const void* from, int64_t bytes) {
  char* line = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  const int64_t before = -reinterpret_cast<intptr_t>(line) & (kLine - 1);
  if (before >= bytes) {
    memcpy(line, source, static_cast<size_t>(bytes));
    return;
  }
  memcpy(line, source, static_cast<size_t>(before));
  int64_t at = before;
  for (; at + kLine <= bytes; at += kLine) stream_line(line + at, source + at);
  memcpy(line + at, source + at, static_cast<size_t>(bytes - at));
}

inline void end_stream() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CPU_STREAM_H_
