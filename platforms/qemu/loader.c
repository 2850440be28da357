/* Loads a native library without glibc and takes a step with it: loader LIBRARY. Declares what it uses,
 * so that it needs no headers of the C library that it is linked with. */
extern void *dlopen(const char *name, int mode);
extern void *dlsym(void *library, const char *name);
extern char *dlerror(void);
extern int printf(const char *format, ...);

typedef void (*sgd)(float *weights, float *gradients, long long count, float rate);

int main(int count, char **words) {
  void *library = count == 2 ? dlopen(words[1], 2) : 0;
  if (!library) {
    printf("cannot be loaded: %s\n", dlerror());
    return 1;
  }
  sgd step = (sgd)dlsym(library, "et_base_sgd");
  if (!step || !dlsym(library, "RegisterCustomOps")) {
    printf("a symbol is missing: %s\n", dlerror());
    return 1;
  }
  float weights[37], gradients[37];
  for (int i = 0; i < 37; i++) {
    weights[i] = (float)i;
    gradients[i] = 2.0f;
  }
  step(weights, gradients, 37, 0.25f);
  for (int i = 0; i < 37; i++) {
    if (weights[i] != (float)i - 0.5f) {
      printf("wrong number %d\n", i);
      return 1;
    }
  }
  printf("ok\n");
  return 0;
}
