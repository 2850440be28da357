/* Matrix products of packed panels, for gradients that onnxruntime would need several nodes for.
 *
 * C (M, N) += A (M, K) B (K, N), any strides: pack_rows cuts A into panels of MR rows, pack_columns B
 * into panels of NR columns, both with k outermost, so that `tile` reads straight ahead. */
#ifndef EDGE_TRAIN_GEMM_H
#define EDGE_TRAIN_GEMM_H

#include "vec.h"

#if VL_BYTES == 64
enum { MR = 12, NV = 2 };
#elif VL_BYTES == 32
enum { MR = 6, NV = 2 };
#elif defined(__aarch64__)
enum { MR = 8, NV = 2 };
#else
enum { MR = 4, NV = 2 };
#endif
enum { NR = NV * VL, KC = 256 };

static inline size_t panels(size_t n, size_t width) { return (n + width - 1) / width; }

/* `count` lines of length k into panels of `width`: out[panel][k][width], zeros where lines end.
 * Line i, element j stands at from[i * line + j * step]. */
static inline void pack(float *restrict out, const float *restrict from, size_t count, size_t k, size_t line,
                        size_t step, size_t width) {
  for (size_t start = 0; start < count; start += width, out += k * width) {
    size_t lines = least(width, count - start);
    const float *base = from + start * line;
    if (line == 1 && lines == width) {
      for (size_t j = 0; j < k; j++)
        for (size_t i = 0; i < width; i++) out[j * width + i] = base[j * step + i];
      continue;
    }
    for (size_t i = 0; i < width; i++) {
      const float *row = base + i * line;
      if (i < lines)
        for (size_t j = 0; j < k; j++) out[j * width + i] = row[j * step];
      else
        for (size_t j = 0; j < k; j++) out[j * width + i] = 0;
    }
  }
}

/* sum (MR, NR) += a-panel times b-panel. */
static inline __attribute__((always_inline)) void multiply(vf sum[MR][NV], const float *restrict a,
                                                           const float *restrict b, size_t k) {
  for (size_t p = 0; p < k; p++, a += MR, b += NR) {
    vf right[NV];
    for (int j = 0; j < NV; j++) right[j] = load(b + j * VL);
#pragma GCC unroll 12
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
      for (int j = 0; j < NV; j++) sum[i][j] += a[i] * right[j];
  }
}

/* One MR x NR tile: c (+)= a-panel times b-panel; `rows`, `columns` of it exist. */
static inline void tile(float *restrict c, size_t row, const float *restrict a, const float *restrict b,
                        size_t k, size_t rows, size_t columns, int add) {
  vf sum[MR][NV];
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) sum[i][j] = (vf){0};
  multiply(sum, a, b, k);
  if (rows == MR && columns == NR) {
    for (int i = 0; i < MR; i++)
      for (int j = 0; j < NV; j++) {
        float *at = c + (size_t)i * row + j * VL;
        store(at, add ? load(at) + sum[i][j] : sum[i][j]);
      }
    return;
  }
  for (int i = 0; i < MR; i++) /* constant bounds: sum stays in registers above */
    for (int j = 0; j < NV; j++)
      for (int l = 0; l < VL; l++)
        if ((size_t)i < rows && (size_t)(j * VL + l) < columns) {
          float *at = c + (size_t)i * row + (size_t)(j * VL + l);
          *at = (add ? *at : 0) + sum[i][j][l];
        }
}

/* All tiles of packed panels a (M) and b (N). */
static inline void product(float *c, size_t row, const float *a, const float *b, size_t m, size_t n, size_t k,
                           int add) {
  for (size_t j = 0; j < n; j += NR)
    for (size_t i = 0; i < m; i += MR)
      tile(c + i * row + j, row, a + i * k, b + j * k, k, least(MR, m - i), least(NR, n - j), add);
}

#endif
