#include "exec/file/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace heteroplace::exec {

namespace {

alignas(16) constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

constexpr size_t kBlockBytes = 64;

void CompressPortably(uint32_t* state, const uint8_t* data, size_t num_blocks) {
  for (; num_blocks > 0; --num_blocks, data += kBlockBytes) {
    uint32_t w[64];
    for (size_t t = 0; t < 16; ++t) {
      const uint8_t* at = data + 4 * t;
      w[t] = uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
    }
    for (size_t t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = std::array<uint32_t, 8>{state[0], state[1], state[2], state[3],
                                                            state[4], state[5], state[6], state[7]};
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t first = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t second = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + first;
      d = c;
      c = b;
      b = a;
      a = first + second;
    }
    const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) state[i] += sums[i];
  }
}

#if defined(__x86_64__)

/*! \brief Four rounds with the words `w`, and the message words that follow from `w` on. */
__attribute__((target("sha,sse4.1,ssse3"))) inline void FourRounds(__m128i* abef, __m128i* cdgh,
                                                                   __m128i w, size_t round) {
  const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kRoundConstants + round));
  const __m128i sum = _mm_add_epi32(w, k);
  *cdgh = _mm_sha256rnds2_epu32(*cdgh, *abef, sum);
  *abef = _mm_sha256rnds2_epu32(*abef, *cdgh, _mm_shuffle_epi32(sum, 0x0E));
}

__attribute__((target("sha,sse4.1,ssse3"))) void CompressByInstructions(uint32_t* state,
                                                                        const uint8_t* data,
                                                                        size_t num_blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions want the state as (a, b, e, f) and (c, d, g, h).
  __m128i low = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<__m128i*>(state)), 0xB1);
  __m128i high = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<__m128i*>(state + 4)), 0x1B);
  __m128i abef = _mm_alignr_epi8(low, high, 8);
  __m128i cdgh = _mm_blend_epi16(high, low, 0xF0);
  for (; num_blocks > 0; --num_blocks, data += kBlockBytes) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (size_t i = 0; i < 4; ++i) {
      w[i] =
          _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
      FourRounds(&abef, &cdgh, w[i], 4 * i);
    }
    for (size_t i = 4; i < 16; ++i) {
      __m128i next = _mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]);
      next = _mm_add_epi32(next, _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
      w[i % 4] = _mm_sha256msg2_epu32(next, w[(i + 3) % 4]);
      FourRounds(&abef, &cdgh, w[i % 4], 4 * i);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  low = _mm_shuffle_epi32(abef, 0x1B);
  high = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(low, high, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(high, low, 8));
}

/*! \brief CPUID leaf 7, EBX bit 29; registers of 128 bits are always kept by the system. */
bool HasShaInstructions() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0 &&
         __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

#endif

void Compress(uint32_t* state, const uint8_t* data, size_t num_blocks) {
#if defined(__x86_64__)
  static const bool has_instructions = HasShaInstructions();
  if (has_instructions) return CompressByInstructions(state, data, num_blocks);
#endif
  CompressPortably(state, data, num_blocks);
}

}  // namespace

void Sha256::Update(const void* data, size_t bytes) {
  if (bytes == 0) return;
  const uint8_t* from = static_cast<const uint8_t*>(data);
  const size_t filled = bytes_ % kBlockBytes;
  bytes_ += bytes;
  if (filled > 0) {
    const size_t taken = std::min(bytes, kBlockBytes - filled);
    std::memcpy(block_.data() + filled, from, taken);
    if (filled + taken < kBlockBytes) return;
    Compress(state_.data(), block_.data(), 1);
    from += taken;
    bytes -= taken;
  }
  Compress(state_.data(), from, bytes / kBlockBytes);
  const size_t rest = bytes % kBlockBytes;
  if (rest > 0) std::memcpy(block_.data(), from + (bytes - rest), rest);
}

Digest Sha256::Finish() {
  const uint64_t bits = bytes_ * 8;
  const uint8_t padding[kBlockBytes] = {0x80};
  const size_t filled = bytes_ % kBlockBytes;
  Update(padding, (filled < 56 ? 56 : 120) - filled);
  uint8_t length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  Update(length, sizeof(length));
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest Sha256Of(const void* data, size_t bytes) {
  Sha256 hash;
  hash.Update(data, bytes);
  return hash.Finish();
}

std::string HexOf(const Digest& digest) {
  std::string text;
  for (uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace heteroplace::exec
