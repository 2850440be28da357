/* CPUID by ourselves: the library has no libgcc to ask. ARM builds have one instruction set. */
#include "cpu.h"

#if defined(__x86_64__)
static void cpuid(uint32_t leaf, uint32_t sub, uint32_t *r) {
  __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "a"(leaf), "c"(sub));
}

static uint32_t saved_state(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

static int has(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

__attribute__((unused)) static int detect(void) {
  uint32_t r[4];
  cpuid(0, 0, r);
  if (r[0] < 7) return ET_BASE;
  cpuid(1, 0, r);
  /* FMA, MOVBE, OSXSAVE, AVX, F16C */
  if (!has(r[2], 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29)) return ET_BASE;
  uint32_t state = saved_state();
  cpuid(7, 0, r);
  /* the system saves ymm; BMI1, AVX2, BMI2 */
  if (!has(state, 0x6) || !has(r[1], 1u << 3 | 1u << 5 | 1u << 8)) return ET_BASE;
  /* the system saves zmm; AVX512 F, DQ, CD, BW, VL */
  uint32_t wide = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  return has(state, 0xe6) && has(r[1], wide) ? ET_AVX512 : ET_AVX2;
}

int et_cpu_level(void) {
#if defined(ET_LEVEL) /* a build for tests of one level */
  return ET_LEVEL;
#else
  static int level = -1;
  if (level < 0) level = detect();
  return level;
#endif
}

/* Of AVX-512 there are only the kernels that gain from it. */
void et_best_ops(et_ops *ops) {
  int level = et_cpu_level();
  if (level == ET_AVX512) et_ops_avx512(ops);
  if (level == ET_BASE)
    et_ops_base(ops);
  else
    et_ops_avx2(ops);
}
#else
int et_cpu_level(void) { return ET_BASE; }

void et_best_ops(et_ops *ops) { et_ops_base(ops); }
#endif
