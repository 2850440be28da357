/* Elementary functions of vectors, to a few units in the last place; NaN stays NaN, and infinities give
 * what IEEE 754 says. Polynomials after Cephes (exp, log, tanh) and a minimax fit (erf). */
#ifndef EDGE_TRAIN_MATH_H
#define EDGE_TRAIN_MATH_H

#include "vec.h"

static inline vf size_of(vf x) { return (vf)((vi)x & 0x7fffffff); }
static inline vf with_sign(vf size, vf sign) {
  return (vf)((vi)size_of(size) | ((vi)sign & (vi)splat(-0.0f)));
}

/* The nearest whole number, |x| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction. */
static inline vf nearest(vf x) { return (x + 12582912.0f) - 12582912.0f; }

/* 2^n, n from -126 to 127. */
static inline vf power_of_two(vi n) { return (vf)((n + 127) << 23); }

static inline vf vexp(vf x) {
  vf in = vmin(vmax(x, splat(-104.0f)), splat(89.0f)); /* beyond: 0 and infinity all the same */
  vf n = nearest(in * 1.44269504f);
  vf r = in - n * 0.693359375f; /* ln 2 in two parts, the first exact in n times it */
  r -= n * -2.12194440e-4f;
  vf p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  vi whole = __builtin_convertvector(n, vi), half = whole >> 1; /* in two steps: subnormal results */
  vf y = p * power_of_two(half) * power_of_two(whole - half);
  return choose(x == x, y, x);
}

/* Of normal numbers above 0; infinity and NaN stay. */
static inline vf vlog(vf x) {
  vi bits = (vi)x, exponent = (bits >> 23) - 126;
  vf m = (vf)((bits & 0x007fffff) | 0x3f000000); /* 0.5 to 1 */
  vi low = m < 0.707106781f;
  exponent += low; /* -1 where true */
  m = m + choose(low, m, (vf){0}) - 1.0f;
  vf n = __builtin_convertvector(exponent, vf), square = m * m;
  vf p = 7.0376836292e-2f * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  vf y = p * m * square + n * -2.12194440e-4f;
  y = y - 0.5f * square + m + n * 0.693359375f;
  return choose(x < splat(__builtin_inff()), y, x);
}

static inline float log_of(float x) { return vlog(splat(x))[0]; }

static inline vf vsigmoid(vf x) { return 1.0f / (1.0f + vexp(-x)); }

static inline vf vtanh(vf x) {
  vf size = size_of(x), z = x * x;
  vf p = -5.70498872745e-3f * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  vf near = p * z * x + x, far = 1.0f - 2.0f / (vexp(size + size) + 1.0f);
  return choose(size < 0.625f, near, with_sign(far, x));
}

static inline vf verf(vf x) {
  vf t = size_of(x), s = x * x;
  vf far = -1.72853470e-5f * t + 3.83197126e-4f;
  vf u = -3.88396438e-3f * t + 2.42546219e-2f;
  far = far * s + u;
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = 1.0f - vexp(far * t - t);
  vf near = -5.96761703e-4f * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  far = choose(t > 4.0f, splat(1.0f), far); /* also where the polynomial of infinity is NaN */
  vf y = choose(t > 0.927734375f, with_sign(far, x), near * x + x);
  return choose(x == x, y, x);
}

#endif
