/*
 * A libcuda.so.1 without a GPU, for tests of groundplane's CUDA check.
 *
 * It answers from the file that MOCK_CUDA names, which __init__.py writes. It knows the functions that the check calls
 * and nothing else. Device memory is the host's; a kernel is known by the name of its entry in the PTX text, and
 * vectorAdd is done on the CPU, as many threads as were launched. What a program has not given back when it releases
 * the context makes that fail.
 *
 * The file: a line each of a keyword and its values. `gpu` begins a GPU, which the lines after it describe.
 *   version N | gpu UUID(hex) | own UUID(hex, of a MIG device) | memory BYTES | compute MAJOR MINOR | name TEXT
 *   fail FUNCTION CODE | hang FUNCTION | crash FUNCTION   (before the first gpu: for all; else for that one, where the
 *     function concerns a device)
 *   wrong N   (the first N sums of the GPU are wrong) | log TEXT   (what the compiler says when it fails)
 * CUDA_VISIBLE_DEVICES may name a GPU or MIG device by UUID; without it, as in CUDA, one MIG device is seen, and none
 * beside a whole GPU.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700
};
enum { GPUS = 32, RULES = 32, BLOCKS = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };

typedef struct { char what[32], function[64]; int code; } Rule;
typedef struct {
    char name[128];
    unsigned char gpu[16], own[16];
    int mig, major, minor, wrong;
    unsigned long long memory;
    unsigned rules;
    Rule rule[RULES];
} Gpu;

static Gpu known[GPUS];
static Gpu *seen[GPUS];
static unsigned count, visible, rules;
static Rule rule[RULES];
static int version, initialised, current = -1, modules;
static char text[512];
static struct { void *at; size_t size; } block[BLOCKS];
static struct { int used; int has_kernel; } module;

/* --- reading the file --- */

static void bytes_of(const char *hex, unsigned char *out) {
    for (int at = 0; at < 16; at++) {
        unsigned value = 0;
        sscanf(hex + 2 * at, "%2x", &value);
        out[at] = (unsigned char)value;
    }
}
static void add_rule(const char *what, const char *rest) {
    Rule made = {.code = 0};
    snprintf(made.what, sizeof made.what, "%s", what);
    if (sscanf(rest, "%63s %d", made.function, &made.code) < 1) return;
    if (count == 0 && rules < RULES) rule[rules++] = made;
    else if (count > 0 && known[count - 1].rules < RULES) known[count - 1].rule[known[count - 1].rules++] = made;
}
static void read_file(void) {
    const char *path = getenv("MOCK_CUDA");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024], key[32];
    int used = 0;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%31s %n", key, &used) != 1) continue;
        const char *rest = line + used;
        Gpu *g = count ? &known[count - 1] : NULL;
        if (!strcmp(key, "version")) version = atoi(rest);
        else if (!strcmp(key, "log")) snprintf(text, sizeof text, "%s", rest);
        else if (!strcmp(key, "fail") || !strcmp(key, "hang") || !strcmp(key, "crash")) add_rule(key, rest);
        else if (!strcmp(key, "gpu") && count < GPUS) {
            bytes_of(rest, known[count].gpu);
            memcpy(known[count].own, known[count].gpu, 16);
            count++;
        } else if (!g) continue;
        else if (!strcmp(key, "own")) { bytes_of(rest, g->own); g->mig = 1; }
        else if (!strcmp(key, "memory")) g->memory = strtoull(rest, NULL, 10);
        else if (!strcmp(key, "compute")) sscanf(rest, "%d %d", &g->major, &g->minor);
        else if (!strcmp(key, "wrong")) g->wrong = atoi(rest);
        else if (!strcmp(key, "name")) snprintf(g->name, sizeof g->name, "%s", rest);
    }
    if (file) fclose(file);
}
static int chosen(const Gpu *g, const char *wanted) {
    char shown[48];
    const unsigned char *u = g->own;
    snprintf(shown, sizeof shown, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", g->mig ? "MIG" : "GPU",
             u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return strstr(wanted, shown) != NULL;
}
static void choose(void) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    visible = 0;
    for (unsigned at = 0; at < count; at++)
        if (wanted ? chosen(&known[at], wanted) : !known[at].mig) seen[visible++] = &known[at];
    for (unsigned at = 0; at < count && !visible && !wanted; at++)
        if (known[at].mig) seen[visible++] = &known[at];
}

/* --- faults --- */

static int obey(const Rule *list, unsigned size, const char *function) {
    for (unsigned at = 0; at < size; at++) {
        if (strcmp(list[at].function, function)) continue;
        if (!strcmp(list[at].what, "hang")) for (;;) pause();
        if (!strcmp(list[at].what, "crash")) raise(SIGSEGV);
        return list[at].code;
    }
    return SUCCESS;
}
/* What a function is to answer, of a device (or -1), before it does anything. */
static int fault(const char *function, int device) {
    int code = obey(rule, rules, function);
    if (code) return code;
    if (!initialised && strcmp(function, "cuInit")) return NOT_INITIALIZED;
    if (device >= 0 && device < (int)visible) return obey(seen[device]->rule, seen[device]->rules, function);
    return SUCCESS;
}
#define OF(device) do { int code_ = fault(__func__, device); if (code_) return code_; } while (0)
#define VALID(device) do { if ((device) < 0 || (device) >= (int)visible) return INVALID_DEVICE; } while (0)
#define IN_CONTEXT do { OF(current); if (current < 0) return INVALID_CONTEXT; } while (0)

/* --- devices --- */

int cuInit(unsigned flags) {
    if (!count && !rules && !version) read_file();
    int code = fault("cuInit", -1);
    if (code) return code;
    if (flags) return INVALID_VALUE;
    choose();
    if (!visible) return NO_DEVICE;
    initialised = 1;
    return SUCCESS;
}
int cuDriverGetVersion(int *out) { OF(-1); *out = version; return SUCCESS; }
int cuDeviceGetCount(int *out) { OF(-1); *out = (int)visible; return SUCCESS; }
int cuDeviceGet(int *out, int ordinal) { OF(ordinal); VALID(ordinal); *out = ordinal; return SUCCESS; }
int cuDeviceGetName(char *out, int size, int device) {
    OF(device);
    VALID(device);
    snprintf(out, (size_t)size, "%s", seen[device]->name);
    return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *out, int device) { OF(device); VALID(device); *out = seen[device]->memory; return SUCCESS; }
int cuDeviceGetAttribute(int *out, int attribute, int device) {
    OF(device);
    VALID(device);
    if (attribute != CAPABILITY_MAJOR && attribute != CAPABILITY_MINOR) return INVALID_VALUE;
    *out = attribute == CAPABILITY_MAJOR ? seen[device]->major : seen[device]->minor;
    return SUCCESS;
}
int cuDeviceGetUuid(unsigned char *out, int device) { OF(device); VALID(device); memcpy(out, seen[device]->gpu, 16); return SUCCESS; }
int cuDeviceGetUuid_v2(unsigned char *out, int device) { OF(device); VALID(device); memcpy(out, seen[device]->own, 16); return SUCCESS; }

/* --- contexts, modules --- */

int cuDevicePrimaryCtxRetain(void **out, int device) { OF(device); VALID(device); *out = seen[device]; return SUCCESS; }
int cuCtxSetCurrent(void *context) {
    int device = -1;
    for (unsigned at = 0; at < visible; at++)
        if (seen[at] == context) device = (int)at;
    OF(device);
    if (device < 0) return INVALID_CONTEXT;
    current = device;
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    OF(device);
    VALID(device);
    for (int at = 0; at < BLOCKS; at++)
        if (block[at].at) return INVALID_CONTEXT;
    if (modules) return INVALID_CONTEXT;
    current = -1;
    return SUCCESS;
}
int cuModuleLoadDataEx(void **out, const char *image, unsigned options, const int *names, void **values) {
    int code = fault(__func__, current);
    for (unsigned at = 0; code && at < options; at++)
        if (names[at] == ERROR_LOG) snprintf(values[at], sizeof text, "%s", text);
    if (code) return code;
    if (current < 0) return INVALID_CONTEXT;
    if (!strstr(image, ".version") || !strstr(image, ".target")) return INVALID_IMAGE;
    module.used = 1;
    module.has_kernel = strstr(image, ".entry vectorAdd(") != NULL;
    modules++;
    *out = &module;
    return SUCCESS;
}
int cuModuleUnload(void *which) {
    IN_CONTEXT;
    if (which != &module || !modules) return INVALID_HANDLE;
    modules--;
    return SUCCESS;
}
int cuModuleGetFunction(void **out, void *which, const char *name) {
    IN_CONTEXT;
    if (which != &module || !modules) return INVALID_HANDLE;
    if (strcmp(name, "vectorAdd") || !module.has_kernel) return NOT_FOUND;
    *out = &module.has_kernel;
    return SUCCESS;
}

/* --- memory, running --- */

static void *inside(uint64_t address, size_t size) {
    for (int at = 0; at < BLOCKS; at++)
        if (block[at].at && address == (uint64_t)(uintptr_t)block[at].at && size <= block[at].size) return block[at].at;
    return NULL;
}
int cuMemAlloc_v2(uint64_t *out, size_t size) {
    IN_CONTEXT;
    for (int at = 0; at < BLOCKS; at++) {
        if (block[at].at) continue;
        block[at].at = calloc(1, size);
        block[at].size = size;
        *out = (uint64_t)(uintptr_t)block[at].at;
        return SUCCESS;
    }
    return 2;
}
int cuMemFree_v2(uint64_t address) {
    IN_CONTEXT;
    for (int at = 0; at < BLOCKS; at++)
        if (block[at].at && address == (uint64_t)(uintptr_t)block[at].at) {
            free(block[at].at);
            block[at].at = NULL;
            return SUCCESS;
        }
    return INVALID_VALUE;
}
int cuMemcpyHtoD_v2(uint64_t address, const void *from, size_t size) {
    IN_CONTEXT;
    void *to = inside(address, size);
    if (!to) return INVALID_VALUE;
    memcpy(to, from, size);
    return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, uint64_t address, size_t size) {
    IN_CONTEXT;
    const void *from = inside(address, size);
    if (!from) return INVALID_VALUE;
    memcpy(to, from, size);
    return SUCCESS;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
    IN_CONTEXT;
    if (function != &module.has_kernel || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || stream || extra) return INVALID_VALUE;
    unsigned elements = *(unsigned *)arguments[3], threads = gx * bx;
    size_t size = elements * sizeof(float);
    const float *left = inside(*(uint64_t *)arguments[0], size), *right = inside(*(uint64_t *)arguments[1], size);
    float *sum = inside(*(uint64_t *)arguments[2], size);
    if (!left || !right || !sum) return ILLEGAL_ADDRESS;
    for (unsigned at = 0; at < threads && at < elements; at++) sum[at] = left[at] + right[at];
    for (int at = 0; at < seen[current]->wrong && at < (int)elements; at++) sum[at] += 1;
    return SUCCESS;
}
int cuCtxSynchronize(void) { IN_CONTEXT; return SUCCESS; }
