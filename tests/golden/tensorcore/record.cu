// SPDX-License-Identifier: Apache-2.0
// Records what Hopper's tensor cores answer, each line one element of one step: FP8 in all four
// pairs by wgmma (m64n8k32) and by mma.sync (m16n8k32), BF16 and F16 by wgmma (m64n8k16), among
// them infinities, NaN, subnormals and sums that are too large. Run on an H200, driver 580.159.04,
// CUDA 13.0, on 2026-11-26: 5,760 lines, of which h200.txt has every 17th.
//   nvcc -gencode arch=compute_90a,code=sm_90a -o record record.cu && ./record | awk 'NR % 17 == 1'
// A line: wgmma or mma, types, 32 bytes of a, 32 of b (of 16 bits 16 little-endian words), c, d.
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>
#define MUST(x)                                      \
  do {                                               \
    cudaError_t e = (x);                             \
    if (e) {                                         \
      printf("%s: %s\n", #x, cudaGetErrorString(e)); \
      return 1;                                      \
    }                                                \
  } while (0)

__device__ inline uint32_t sa(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// A [64][32] bytes, B [8][32] bytes, C [64][8] floats
#define WG(name, types)                                                                        \
  __global__ void name(const uint8_t* A, const uint8_t* B, const float* C, float* D) {         \
    __shared__ alignas(1024) uint8_t b[256];                                                   \
    const int t = threadIdx.x, w = t / 32, l = t % 32;                                         \
    for (int i = t; i < 256; i += 128) {                                                       \
      int row = i / 32, k = i % 32;                                                            \
      b[k / 16 * 128 + row * 16 + k % 16] = B[i];                                              \
    }                                                                                          \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                               \
    __syncthreads();                                                                           \
    uint32_t a[4];                                                                             \
    for (int r = 0; r < 4; ++r)                                                                \
      memcpy(&a[r], A + (16 * w + l / 4 + 8 * (r & 1)) * 32 + (l % 4) * 4 + 16 * (r >> 1), 4); \
    float d[4];                                                                                \
    for (int i = 0; i < 4; ++i)                                                                \
      d[i] = C[(16 * w + l / 4 + 8 * (i / 2)) * 8 + 2 * (l % 4) + i % 2];                      \
    uint64_t desc = (uint64_t)((sa(b) & 0x3FFFF) >> 4) | (uint64_t)(128 >> 4) << 16 |          \
                    (uint64_t)(256 >> 4) << 32;                                                \
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[i])::"memory");                       \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                    \
    asm volatile(                                                                              \
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                             \
        "wgmma.mma_async.sync.aligned.m64n8" types                                             \
        " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1;\n}\n"                                     \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));                              \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                             \
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                             \
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[i])::"memory");                       \
    for (int i = 0; i < 4; ++i)                                                                \
      D[(16 * w + l / 4 + 8 * (i / 2)) * 8 + 2 * (l % 4) + i % 2] = d[i];                      \
  }
WG(wg_44, "k32.f32.e4m3.e4m3")
WG(wg_45, "k32.f32.e4m3.e5m2") WG(wg_54, "k32.f32.e5m2.e4m3") WG(wg_55, "k32.f32.e5m2.e5m2")

#define MM(name, types)                                                                        \
  __global__ void name(const uint8_t* A, const uint8_t* B, const float* C, float* D) {         \
    const int t = threadIdx.x, w = t / 32, l = t % 32;                                         \
    uint32_t a[4], b[2];                                                                       \
    float d[4];                                                                                \
    for (int r = 0; r < 4; ++r)                                                                \
      memcpy(&a[r], A + (16 * w + l / 4 + 8 * (r & 1)) * 32 + (l % 4) * 4 + 16 * (r >> 1), 4); \
    for (int r = 0; r < 2; ++r) memcpy(&b[r], B + (l / 4) * 32 + (l % 4) * 4 + 16 * r, 4);     \
    for (int i = 0; i < 4; ++i)                                                                \
      d[i] = C[(16 * w + l / 4 + 8 * (i / 2)) * 8 + 2 * (l % 4) + i % 2];                      \
    asm volatile("mma.sync.aligned.m16n8k32.row.col." types                                    \
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    for (int i = 0; i < 4; ++i)                                                                \
      D[(16 * w + l / 4 + 8 * (i / 2)) * 8 + 2 * (l % 4) + i % 2] = d[i];                      \
  }
    MM(mm_44, "f32.e4m3.e4m3.f32") MM(mm_45, "f32.e4m3.e5m2.f32") MM(mm_54, "f32.e5m2.e4m3.f32")
        MM(mm_55, "f32.e5m2.e5m2.f32")

// 16-bit: A [64][16] words
#define WH(name, types)                                                                        \
  __global__ void name(const uint8_t* A, const uint8_t* B, const float* C, float* D) {         \
    __shared__ alignas(1024) uint8_t b[256];                                                   \
    const int t = threadIdx.x, w = t / 32, l = t % 32;                                         \
    for (int i = t; i < 256; i += 128) {                                                       \
      int row = i / 32, k = i % 32;                                                            \
      b[k / 16 * 128 + row * 16 + k % 16] = B[i];                                              \
    }                                                                                          \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                               \
    __syncthreads();                                                                           \
    uint32_t a[4];                                                                             \
    for (int r = 0; r < 4; ++r)                                                                \
      memcpy(&a[r], A + (16 * w + l / 4 + 8 * (r & 1)) * 32 + (l % 4) * 4 + 16 * (r >> 1), 4); \
    float d[4];                                                                                \
    for (int i = 0; i < 4; ++i)                                                                \
      d[i] = C[(16 * w + l / 4 + 8 * (i / 2)) * 8 + 2 * (l % 4) + i % 2];                      \
    uint64_t desc = (uint64_t)((sa(b) & 0x3FFFF) >> 4) | (uint64_t)(128 >> 4) << 16 |          \
                    (uint64_t)(256 >> 4) << 32;                                                \
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[i])::"memory");                       \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                    \
    asm volatile(                                                                              \
        "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"                                             \
        "wgmma.mma_async.sync.aligned.m64n8" types                                             \
        " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1, 0;\n}\n"                                  \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));                              \
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                             \
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                             \
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[i])::"memory");                       \
    for (int i = 0; i < 4; ++i)                                                                \
      D[(16 * w + l / 4 + 8 * (i / 2)) * 8 + 2 * (l % 4) + i % 2] = d[i];                      \
  }
            WH(wg_bb, "k16.f32.bf16.bf16") WH(wg_hh, "k16.f32.f16.f16")

                using Kernel = void(*)(const uint8_t*, const uint8_t*, const float*, float*);
std::mt19937 rng(20261126);

// a float8 with a random sign, mantissa and exponent within `spread` of the middle; kind 4: e4m3,
// 5: e5m2
uint8_t f8(int kind, int spread) {
  uint32_t r = rng();
  if ((r >> 20) % 24 == 0) return (r & 1) << 7;  // zeros of both signs
  if (kind == 4) {
    int e = 7 - spread / 2 + (int)((r >> 8) % (spread + 1));
    if (e < 0) e = 0;
    if (e > 15) e = 15;
    uint8_t m = r & 7;
    if (e == 15 && m == 7) m = 6;
    return (r >> 4 & 1) << 7 | e << 3 | m;
  }
  int e = 15 - spread / 2 + (int)((r >> 8) % (spread + 1));
  if (e < 0) e = 0;
  if (e > 30) e = 30;
  return (r >> 4 & 1) << 7 | e << 2 | (r & 3);
}

uint16_t h16(bool bf, int mode) {
  uint32_t r = rng();
  if (mode == 3) {  // specials among normal numbers
    static const uint16_t sb[] = {
        0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x0001, 0x8003, 0x0000, 0x8000, 0x7f7f, 0xff7f, 0x0080};
    static const uint16_t sh[] = {
        0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x0001, 0x8003, 0x0000, 0x8000, 0x7bff, 0xfbff, 0x0400};
    if ((r >> 20) % 40 == 0) return bf ? sb[(r >> 8) % 11] : sh[(r >> 8) % 11];
    return bf ? (uint16_t)((r & 0x807F) | 127 << 7) : (uint16_t)((r & 0x83FF) | 15 << 10);
  }
  if (mode == 4)
    return bf ? (uint16_t)((r & 0x807F) | (190 + (r >> 16) % 64) << 7)
              : (uint16_t)(r & 0x83FF);  // overflow / subnormal
  if (mode == 5)
    return bf ? (uint16_t)((r & 0x807F) | (1 + (r >> 16) % 70) << 7)
              : (uint16_t)((r & 0x83FF) | (28 + (r >> 16) % 3) << 10);
  int e = (r >> 16) % 24;
  return bf ? (uint16_t)((r & 0x807F) | (115 + e) << 7) : (uint16_t)((r & 0x83FF) | (3 + e) << 10);
}

float cval(int mode) {
  uint32_t r = rng();
  if (mode == 0) return 0.f;
  if (mode == 2 && (r >> 20) % 30 == 0) {
    static const uint32_t s[] = {
        0x7f800000, 0xff800000, 0x7fc00000, 0x80000000, 0x00000001, 0x7f7fffff};
    uint32_t u = s[(r >> 8) % 6];
    float f;
    memcpy(&f, &u, 4);
    return f;
  }
  uint32_t u = (r & 0x807FFFFF) | (uint32_t)(127 - 12 + (r >> 23 & 0x1f) % 25) << 23;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

int main() {
  cudaDeviceProp p;
  MUST(cudaGetDeviceProperties(&p, 0));
  fprintf(stderr, "%s\n", p.name);
  uint8_t *A, *B;
  float *C, *D;
  MUST(cudaMalloc(&A, 2048));
  MUST(cudaMalloc(&B, 256));
  MUST(cudaMalloc(&C, 2048));
  MUST(cudaMalloc(&D, 2048));

  struct {
    const char* how;
    const char* types;
    int ka, kb;
    Kernel k;
  } all[] = {{"wgmma", "e4m3e4m3", 4, 4, wg_44},
             {"wgmma", "e4m3e5m2", 4, 5, wg_45},
             {"wgmma", "e5m2e4m3", 5, 4, wg_54},
             {"wgmma", "e5m2e5m2", 5, 5, wg_55},
             {"mma", "e4m3e4m3", 4, 4, mm_44},
             {"mma", "e4m3e5m2", 4, 5, mm_45},
             {"mma", "e5m2e4m3", 5, 4, mm_54},
             {"mma", "e5m2e5m2", 5, 5, mm_55},
             {"wgmma", "bf16", 16, 16, wg_bb},
             {"wgmma", "f16", 17, 17, wg_hh}};

  std::vector<uint8_t> a(2048), b(256);
  std::vector<float> c(512), d(512);
  for (auto& x : all) {
    const bool half = x.ka >= 16;
    for (int round = 0; round < 12; ++round) {
      int spread = round % 6 == 0   ? 2
                   : round % 6 == 1 ? 6
                   : round % 6 == 2 ? 10
                   : round % 6 == 3 ? 14
                   : round % 6 == 4 ? 30
                                    : 15;
      int cmode = round % 3 == 0 ? 0 : half && round >= 6 ? 2 : 1;
      if (half) {
        for (int i = 0; i < 1024; ++i) {
          uint16_t v = h16(x.ka == 16, round % 6);
          memcpy(&a[2 * i], &v, 2);
        }
        for (int i = 0; i < 128; ++i) {
          uint16_t v = h16(x.ka == 16, round % 6);
          memcpy(&b[2 * i], &v, 2);
        }
      } else {
        for (auto& v : a) v = f8(x.ka, spread);
        for (auto& v : b) v = f8(x.kb, spread);
        if (round == 11)
          for (int i = 0; i < 64; ++i) {
            a[i * 32 + i % 32] = x.ka == 4 ? (i & 1 ? 0x7f : 0xff)
                                           : (uint8_t)(i % 3 == 0   ? 0x7c
                                                       : i % 3 == 1 ? 0xfc
                                                                    : 0x7e);
          }
      }
      for (auto& v : c) v = cval(cmode);
      MUST(cudaMemcpy(A, a.data(), 2048, cudaMemcpyHostToDevice));
      MUST(cudaMemcpy(B, b.data(), 256, cudaMemcpyHostToDevice));
      MUST(cudaMemcpy(C, c.data(), 2048, cudaMemcpyHostToDevice));
      MUST(cudaMemset(D, 0xAA, 2048));
      x.k<<<1, 128>>>(A, B, C, D);
      MUST(cudaGetLastError());
      MUST(cudaDeviceSynchronize());
      MUST(cudaMemcpy(d.data(), D, 2048, cudaMemcpyDeviceToHost));
      for (int n = 0; n < 48; ++n) {
        int i = (n * 37 + round * 11) % 64, j = (n * 5 + round) % 8;
        printf("%s %s ", x.how, x.types);
        for (int k = 0; k < 32; ++k) printf("%02x", a[i * 32 + k]);
        printf(" ");
        for (int k = 0; k < 32; ++k) printf("%02x", b[j * 32 + k]);
        uint32_t cu, du;
        memcpy(&cu, &c[i * 8 + j], 4);
        memcpy(&du, &d[i * 8 + j], 4);
        printf(" %08x %08x\n", cu, du);
      }
    }
  }
  return 0;
}
