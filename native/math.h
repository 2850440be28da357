/* Elementary functions of vectors, to a few units in the last place; NaN stays NaN, and infinities give
 * what IEEE 754 says. Polynomials after Cephes (exp, log, tanh) and a fit of our own (the normal
 * distribution, least squares reweighted to the smallest largest relative error). */
#ifndef EDGE_TRAIN_MATH_H
#define EDGE_TRAIN_MATH_H

#include "vec.h"

static inline vf size_of(vf x) { return (vf)((vi)x & 0x7fffffff); }
static inline vf with_sign(vf size, vf sign) { return (vf)((vi)size_of(size) | ((vi)sign & INT32_MIN)); }

/* NaN stays. */
static inline vf clamp(vf x, float low, float high) { return vmin(splat(high), vmax(splat(low), x)); }

/* The nearest whole number, |x| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction. */
static inline vf nearest(vf x) { return (x + 12582912.0f) - 12582912.0f; }

/* 2^n, n from -126 to 127. */
static inline vf power_of_two(vi n) { return (vf)((n + 127) << 23); }

/* e^(x - n ln 2), n the nearest whole number of x / ln 2. */
static inline vf exp_rest(vf x, vf n) {
  vf r = x - n * 0.693359375f; /* ln 2 in two parts, the first exact in n times it */
  r -= n * -2.12194440e-4f;
  vf p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + (r + 1.0f);
}

/* Where |x| < 87. */
static inline vf exp_within(vf x) {
  vf n = nearest(x * 1.44269504f);
  return exp_rest(x, n) * power_of_two(__builtin_convertvector(n, vi));
}

static inline vf vexp(vf x) {
  vf in = clamp(x, -104.0f, 89.0f); /* beyond: 0 and infinity all the same */
  vf n = nearest(in * 1.44269504f);
  vi whole = __builtin_convertvector(n, vi), half = whole >> 1; /* two steps: subnormal results */
  return exp_rest(in, n) * power_of_two(half) * power_of_two(whole - half);
}

/* Of normal numbers above 0; infinity and NaN stay. */
static inline vf vlog(vf x) {
  vi bits = (vi)x, exponent = (bits >> 23) - 126;
  vf m = (vf)((bits & 0x007fffff) | 0x3f000000); /* 0.5 to 1 */
  vi low = m < 0.707106781f;
  exponent += low; /* -1 where true */
  m = m + (vf)(low & (vi)m) - 1.0f;
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

/* Of numbers above 0: hardware's, everywhere. */
static inline float root_of(float x) { return __builtin_sqrtf(x); }
static inline float log_of(float x) { return vlog(splat(x))[0]; }

/* s = 1 / (1 + e^-x) and 1 - s without cancellation; below -87 a tiny number instead of a tinier one. */
static inline vf sigmoids(vf x, vf *rest) {
  vf e = exp_within(clamp(-x, -87.0f, 87.0f)), s = 1.0f / (1.0f + e);
  *rest = e * s;
  return s;
}
static inline vf vsigmoid(vf x) {
  vf rest;
  return sigmoids(x, &rest);
}

static inline vf vtanh(vf x) {
  vf size = size_of(x), z = x * x;
  vf p = -5.70498872745e-3f * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  vf near = p * z * x + x, far = 1.0f - 2.0f / (exp_within(clamp(size + size, 0.0f, 87.0f)) + 1.0f);
  return choose(size < 0.625f, near, with_sign(far, x));
}

/* Phi(x), the normal distribution, and e^(-x^2 / 2). With t = |x| and k = 1 / (1 + 0.3 t) the tail is
 * e^(-t^2 / 2) times a polynomial of k, 1.2e-7 of its value away at most. */
static inline vf normal_cdf(vf x, vf *bell) {
  vf t = vmin(splat(13.0f), size_of(x)), k = 1.0f / (1.0f + 0.3f * t);
  vf e = exp_within(-0.5f * t * t);
  e = choose(t >= 13.0f, (vf){0}, e);
  vf p = 0.036036502569913864f * k - 0.15871436893939972f;
  p = p * k + 0.20896579325199127f;
  p = p * k - 0.056096889078617096f;
  p = p * k + 0.12984389066696167f;
  p = p * k + 0.09952293336391449f;
  p = p * k + 0.1208169087767601f;
  p = p * k + 0.11962516605854034f;
  vf tail = p * k * e;
  *bell = e;
  return choose(x > 0.0f, 1.0f - tail, tail);
}

#endif
