/*
 * A libnvidia-ml.so.1 without a GPU, for tests of groundplane's NVML source.
 *
 * It answers from the file that MOCK_NVML names, which __init__.py writes, and looks at it again whenever a handle or
 * an event is asked for, so that a test can change the machine under a running program. It knows the functions that
 * groundplane calls and nothing else; structures have NVML's layout.
 *
 * The file: a line each of a keyword and its values. `gpu` begins a GPU, which the lines after it describe.
 *   driver TEXT | cuda N | init CODE | level I J LEVEL | event NUMBER KIND GPU XID GI CI | eventerror NUMBER CODE
 *   gpu UUID | minor N | name TEXT | bus TEXT | memory BYTES | compute MAJOR MINOR | mig MODE | lost N
 *   supported MASK | fabric HEX STATUS CLIQUE STATE | slots N
 *   pci ID SUBSYSTEM-ID | pending MODE | resetless N | busy N
 *   giprofile NUMBER ID SLICES MIB MULTIPROCESSORS MOST SIZE STARTS(bits) COPY DEC ENC JPEG OFA | gi ID PROFILE-ID START SIZE
 *   ciprofile NUMBER ID SLICES | link BUS ACTIVE
 *   migdevice SLOT UUID GI CI GI-PROFILE-ID CI-PROFILE-ID MIB MULTIPROCESSORS GI-SLICES CI-SLICES COPY DEC ENC JPEG OFA
 *   figure KEY VALUE | nofigure KEY CODE | word KEY TEXT | process PID BYTES UTIL GI   (what a GPU shows of itself)
 *   do GPU-INDEX mode MODE | do GPU-INDEX pending MODE | do GPU-INDEX reset | do GPU-INDEX gi+ ID PROFILE-ID START SIZE
 *   do GPU-INDEX gi- ID | do GPU-INDEX ci+ GI CI PROFILE-ID | do GPU-INDEX ci- GI CI
 *     what was changed since: the library itself adds these at the end, so that changes last while it is not loaded
 *   fail FUNCTION CODE   (before the first gpu: for all; FUNCTION without "nvml")
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, OPERATING_SYSTEM = 17, IN_USE = 19, INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25
};
enum { GPUS = 32, SLOTS = 16, PROFILES = 32, LINKS = 36, FAILURES = 16, EVENTS = 1024, SETS = 256, PAIRS = GPUS * GPUS };
enum { FIGURES = 512, WORDS = 16, PROCESSES = 64 };

typedef struct {
    unsigned number, id, slices, multiprocessors, most, size, starts, engines[5];
    unsigned long long mib;
} Profile;
typedef struct { int used; unsigned id, profile, start, size; } GpuInstance;
typedef struct {
    int used;
    char uuid[96];
    unsigned gi, ci, gi_profile, ci_profile;
    unsigned long long mib;
    unsigned multiprocessors, gi_slices, ci_slices, engines[5];
} MigDevice;
typedef struct { char function[64]; int code; } Failure;
typedef struct {
    char uuid[96], name[96], bus[32];
    unsigned minor, slots, profiles, compute_profiles, links, failures;
    int major, minor_capability, mig, pending, resetless, busy, lost;
    unsigned pci_id, subsystem_id;
    unsigned long long memory, supported;
    int has_fabric, fabric_status, fabric_state;
    unsigned char cluster[16];
    unsigned clique;
    Profile gi_profiles[PROFILES], ci_profiles[PROFILES];
    MigDevice devices[SLOTS];
    GpuInstance instances[SLOTS];
    char link_bus[LINKS][32];
    int link_active[LINKS];
    Failure failed[FAILURES];
    unsigned figures, words, processes;
    struct { char key[32]; double value; int code; } figure[FIGURES];
    struct { char key[32], text[64]; } word[WORDS];
    struct { unsigned pid, util, gi; unsigned long long bytes; } process[PROCESSES];
} Gpu;
typedef struct { unsigned long long number, kind, xid; char gpu[96]; unsigned gi, ci; int code; } Event;
typedef struct {
    char driver[80];
    int cuda, init;
    unsigned gpus, failures, events, pairs;
    Gpu gpu[GPUS];
    Failure failed[FAILURES];
    Event event[EVENTS];
    struct { unsigned one, other; int level; } pair[PAIRS];
} Machine;
typedef struct { int used; unsigned long long seen; unsigned registered; char gpu[GPUS][96]; unsigned long long mask[GPUS]; } Set;

static Machine machine, next_machine;
static Set sets[SETS];
static int users;
static struct timespec changed;
static ino_t inode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- reading the file --- */

static void add_instance(Gpu *g, GpuInstance made) {
    for (int at = 0; at < SLOTS; at++)
        if (!g->instances[at].used) {
            g->instances[at] = made;
            return;
        }
}
static GpuInstance *instance_of(Gpu *g, unsigned gi) {
    for (int at = 0; at < SLOTS; at++)
        if (g->instances[at].used && g->instances[at].id == gi) return &g->instances[at];
    return NULL;
}
static const Profile *profile_by_id(const Profile *list, unsigned count, unsigned id) {
    for (unsigned at = 0; at < count; at++)
        if (list[at].id == id) return &list[at];
    return NULL;
}
static MigDevice *by_instance(Gpu *g, unsigned gi, int ci) {
    for (int slot = 0; slot < SLOTS; slot++) {
        MigDevice *d = &g->devices[slot];
        if (d->used && d->gi == gi && (ci < 0 || d->ci == (unsigned)ci)) return d;
    }
    return NULL;
}

/* A compute instance in the first free slot, with what follows from the profiles. */
static void add_compute(Gpu *g, unsigned gi, unsigned ci, unsigned profile) {
    const GpuInstance *instance = instance_of(g, gi);
    const Profile *whole = instance ? profile_by_id(g->gi_profiles, g->profiles, instance->profile) : NULL;
    const Profile *part = profile_by_id(g->ci_profiles, g->compute_profiles, profile);
    int slot = 0;
    while (slot < SLOTS && g->devices[slot].used) slot++;
    if (!whole || !part || slot == SLOTS) return;
    MigDevice *d = &g->devices[slot];
    *d = (MigDevice){.used = 1, .gi = gi, .ci = ci, .gi_profile = instance->profile, .ci_profile = profile, .mib = whole->mib,
                     .multiprocessors = whole->multiprocessors / whole->slices * part->slices,
                     .gi_slices = whole->slices, .ci_slices = part->slices};
    memcpy(d->engines, whole->engines, sizeof d->engines);
    char gpu[9] = "";
    memcpy(gpu, g->uuid + 4, 8);
    snprintf(d->uuid, sizeof d->uuid, "MIG-%s-%04x-%04x-0000-000000000000", gpu, gi, ci);
}

/* What a line of changes says. */
static void change(Machine *m, const char *rest) {
    unsigned index = GPUS, a = 0, b = 0, c = 0, d = 0;
    char what[16] = "";
    sscanf(rest, "%u %15s %u %u %u %u", &index, what, &a, &b, &c, &d);
    if (index >= m->gpus) return;
    Gpu *g = &m->gpu[index];
    if (!strcmp(what, "mode")) g->mig = g->pending = (int)a;
    else if (!strcmp(what, "pending")) g->pending = (int)a;
    else if (!strcmp(what, "reset")) {
        g->mig = g->pending;
        memset(g->instances, 0, sizeof g->instances);
        memset(g->devices, 0, sizeof g->devices);
    } else if (!strcmp(what, "gi+")) add_instance(g, (GpuInstance){1, a, b, c, d});
    else if (!strcmp(what, "gi-") && instance_of(g, a)) instance_of(g, a)->used = 0;
    else if (!strcmp(what, "ci+")) add_compute(g, a, b, c);
    else if (!strcmp(what, "ci-") && by_instance(g, a, (int)b)) by_instance(g, a, (int)b)->used = 0;
}

static void read_gpu_line(Gpu *g, const char *key, const char *rest) {
    if (!strcmp(key, "minor")) sscanf(rest, "%u", &g->minor);
    else if (!strcmp(key, "name")) snprintf(g->name, sizeof g->name, "%s", rest);
    else if (!strcmp(key, "bus")) snprintf(g->bus, sizeof g->bus, "%s", rest);
    else if (!strcmp(key, "memory")) sscanf(rest, "%llu", &g->memory);
    else if (!strcmp(key, "compute")) sscanf(rest, "%d %d", &g->major, &g->minor_capability);
    else if (!strcmp(key, "mig")) { sscanf(rest, "%d", &g->mig); g->pending = g->mig; }
    else if (!strcmp(key, "pending")) sscanf(rest, "%d", &g->pending);
    else if (!strcmp(key, "resetless")) sscanf(rest, "%d", &g->resetless);
    else if (!strcmp(key, "busy")) sscanf(rest, "%d", &g->busy);
    else if (!strcmp(key, "pci")) sscanf(rest, "%x %x", &g->pci_id, &g->subsystem_id);
    else if (!strcmp(key, "lost")) sscanf(rest, "%d", &g->lost);
    else if (!strcmp(key, "supported")) sscanf(rest, "%llu", &g->supported);
    else if (!strcmp(key, "slots")) sscanf(rest, "%u", &g->slots);
    else if (!strcmp(key, "fabric")) {
        char hex[33] = "";
        g->has_fabric = sscanf(rest, "%32s %d %u %d", hex, &g->fabric_status, &g->clique, &g->fabric_state) == 4;
        for (int at = 0; at < 16; at++) sscanf(hex + 2 * at, "%2hhx", &g->cluster[at]);
    } else if (!strcmp(key, "giprofile") && g->profiles < PROFILES) {
        Profile *p = &g->gi_profiles[g->profiles++];
        sscanf(rest, "%u %u %u %llu %u %u %u %u %u %u %u %u %u", &p->number, &p->id, &p->slices, &p->mib,
               &p->multiprocessors, &p->most, &p->size, &p->starts, &p->engines[0], &p->engines[1], &p->engines[2],
               &p->engines[3], &p->engines[4]);
    } else if (!strcmp(key, "ciprofile") && g->compute_profiles < PROFILES) {
        Profile *p = &g->ci_profiles[g->compute_profiles++];
        sscanf(rest, "%u %u %u", &p->number, &p->id, &p->slices);
    } else if (!strcmp(key, "link") && g->links < LINKS) {
        sscanf(rest, "%31s %d", g->link_bus[g->links], &g->link_active[g->links]);
        g->links++;
    } else if (!strcmp(key, "figure") && g->figures < FIGURES) {
        g->figure[g->figures].code = 0;
        sscanf(rest, "%31s %lf", g->figure[g->figures].key, &g->figure[g->figures].value);
        g->figures++;
    } else if (!strcmp(key, "nofigure") && g->figures < FIGURES) {
        sscanf(rest, "%31s %d", g->figure[g->figures].key, &g->figure[g->figures].code);
        g->figures++;
    } else if (!strcmp(key, "word") && g->words < WORDS) {
        sscanf(rest, "%31s %63[^\n]", g->word[g->words].key, g->word[g->words].text);
        g->words++;
    } else if (!strcmp(key, "process") && g->processes < PROCESSES) {
        sscanf(rest, "%u %llu %u %u", &g->process[g->processes].pid, &g->process[g->processes].bytes,
               &g->process[g->processes].util, &g->process[g->processes].gi);
        g->processes++;
    } else if (!strcmp(key, "gi")) {
        GpuInstance made = {.used = 1};
        sscanf(rest, "%u %u %u %u", &made.id, &made.profile, &made.start, &made.size);
        add_instance(g, made);
    } else if (!strcmp(key, "migdevice")) {
        unsigned slot = SLOTS;
        MigDevice d = {.used = 1};
        sscanf(rest, "%u %95s %u %u %u %u %llu %u %u %u %u %u %u %u %u", &slot, d.uuid, &d.gi, &d.ci, &d.gi_profile,
               &d.ci_profile, &d.mib, &d.multiprocessors, &d.gi_slices, &d.ci_slices, &d.engines[0], &d.engines[1],
               &d.engines[2], &d.engines[3], &d.engines[4]);
        if (slot < SLOTS) g->devices[slot] = d;
    }
}

static void read_line(Machine *m, char *line) {
    line[strcspn(line, "\n")] = 0;
    char *rest = strchr(line, ' ');
    if (!rest) return;
    *rest++ = 0;
    Gpu *g = m->gpus ? &m->gpu[m->gpus - 1] : NULL;
    if (!strcmp(line, "driver")) snprintf(m->driver, sizeof m->driver, "%s", rest);
    else if (!strcmp(line, "cuda")) sscanf(rest, "%d", &m->cuda);
    else if (!strcmp(line, "init")) sscanf(rest, "%d", &m->init);
    else if (!strcmp(line, "gpu") && m->gpus < GPUS) {
        Gpu *fresh = &m->gpu[m->gpus++];
        memset(fresh, 0, sizeof *fresh);
        fresh->mig = -1;
        snprintf(fresh->uuid, sizeof fresh->uuid, "%s", rest);
    } else if (!strcmp(line, "level") && m->pairs < PAIRS) {
        sscanf(rest, "%u %u %d", &m->pair[m->pairs].one, &m->pair[m->pairs].other, &m->pair[m->pairs].level);
        m->pairs++;
    } else if (!strcmp(line, "event") && m->events < EVENTS) {
        Event *e = &m->event[m->events++];
        memset(e, 0, sizeof *e);
        sscanf(rest, "%llu %llu %95s %llu %u %u", &e->number, &e->kind, e->gpu, &e->xid, &e->gi, &e->ci);
    } else if (!strcmp(line, "eventerror") && m->events < EVENTS) {
        Event *e = &m->event[m->events++];
        memset(e, 0, sizeof *e);
        sscanf(rest, "%llu %d", &e->number, &e->code);
    } else if (!strcmp(line, "do")) change(m, rest);
    else if (!strcmp(line, "fail")) {
        Failure *f = g ? &g->failed[g->failures++ % FAILURES] : &m->failed[m->failures++ % FAILURES];
        sscanf(rest, "%63s %d", f->function, &f->code);
    } else if (g) read_gpu_line(g, line, rest);
}

/* Read the file if it has changed; the lock is held. */
static void look(void) {
    const char *path = getenv("MOCK_NVML");
    struct stat status;
    if (!path || stat(path, &status)) return;
    if (status.st_ino == inode && !memcmp(&status.st_mtim, &changed, sizeof changed)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[512];
    next_machine.driver[0] = 0;
    next_machine.cuda = next_machine.init = 0;
    next_machine.gpus = next_machine.failures = next_machine.events = next_machine.pairs = 0;
    while (fgets(line, sizeof line, file)) read_line(&next_machine, line);
    fclose(file);
    machine = next_machine;
    inode = status.st_ino;
    changed = status.st_mtim;
}

/* --- handles: a GPU is its index + 1 shifted by 16; a MIG device, GPU or compute instance has more bits --- */

typedef uintptr_t Handle;
enum { GI_BIT = 0x4000, CI_BIT = 0x8000 };

static Handle of_gpu(unsigned index) { return (Handle)(index + 1) << 16; }
static Gpu *gpu_of(Handle handle) {
    unsigned index = (unsigned)(handle >> 16);
    return index && index <= machine.gpus ? &machine.gpu[index - 1] : NULL;
}
static MigDevice *device_of(Handle handle) {
    Gpu *g = gpu_of(handle);
    unsigned slot = (unsigned)(handle & 0xFF);
    return g && slot && slot <= SLOTS && g->devices[slot - 1].used ? &g->devices[slot - 1] : NULL;
}
static int failure(const Failure *list, unsigned count, const char *function) {
    for (unsigned at = 0; at < count && at < FAILURES; at++)
        if (!strcmp(list[at].function, function)) return list[at].code;
    return SUCCESS;
}
static int refused(Gpu *g, const char *function) {
    if (!users) return UNINITIALIZED;
    int code = failure(machine.failed, machine.failures, function);
    if (code) return code;
    if (!g) return INVALID_ARGUMENT;
    if (g->lost) return GPU_IS_LOST;
    return failure(g->failed, g->failures, function);
}

/* Each function is made of: take the lock, refuse what is to be refused, answer. */
#define ANSWER(name, handle, body)                \
    do {                                          \
        pthread_mutex_lock(&lock);                \
        Gpu *g = gpu_of((Handle)(handle));        \
        MigDevice *d = device_of((Handle)(handle)); \
        (void)d;                                  \
        int code = refused(g, name);              \
        if (!code) code = (body);                 \
        pthread_mutex_unlock(&lock);              \
        return code;                              \
    } while (0)

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

/* --- the library --- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    look();
    int code = machine.init;
    if (!code) users++;
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int code = users ? SUCCESS : UNINITIALIZED;
    if (users) users--;
    pthread_mutex_unlock(&lock);
    return code;
}
const char *nvmlErrorString(int code) {
    static char words[32];
    snprintf(words, sizeof words, "mock error %d", code);
    return words;
}
static int system_refused(const char *name) {
    if (!users) return UNINITIALIZED;
    look();
    return failure(machine.failed, machine.failures, name);
}
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    pthread_mutex_lock(&lock);
    int code = system_refused("SystemGetDriverVersion");
    if (!code) code = text(version, length, machine.driver);
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlSystemGetCudaDriverVersion(int *version) {
    pthread_mutex_lock(&lock);
    int code = system_refused("SystemGetCudaDriverVersion");
    if (!code) *version = machine.cuda;
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    pthread_mutex_lock(&lock);
    int code = system_refused("DeviceGetCount");
    if (!code) *count = machine.gpus;
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *device) {
    pthread_mutex_lock(&lock);
    int code = system_refused("DeviceGetHandleByIndex");
    if (!code && index >= machine.gpus) code = INVALID_ARGUMENT;
    if (!code) code = refused(&machine.gpu[index], "DeviceGetHandleByIndex");
    if (!code) *device = of_gpu(index);
    pthread_mutex_unlock(&lock);
    return code;
}
static int find_uuid(const char *uuid, Handle *device) {
    for (unsigned index = 0; index < machine.gpus; index++) {
        Gpu *g = &machine.gpu[index];
        Handle found = strcmp(g->uuid, uuid) ? 0 : of_gpu(index);
        for (int slot = 0; slot < SLOTS; slot++)
            if (g->devices[slot].used && !strcmp(g->devices[slot].uuid, uuid)) found = of_gpu(index) | (Handle)(slot + 1);
        if (!found) continue;
        *device = found;
        return refused(g, "DeviceGetHandleByUUID");
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *device) {
    pthread_mutex_lock(&lock);
    int code = system_refused("DeviceGetHandleByUUID");
    if (!code) code = find_uuid(uuid, device);
    pthread_mutex_unlock(&lock);
    return code;
}

/* --- a GPU --- */

int nvmlDeviceGetName(Handle device, char *name, unsigned length) {
    ANSWER("DeviceGetName", device, text(name, length, g->name));
}
int nvmlDeviceGetUUID(Handle device, char *uuid, unsigned length) {
    ANSWER("DeviceGetUUID", device, text(uuid, length, d ? d->uuid : g->uuid));
}
int nvmlDeviceGetMinorNumber(Handle device, unsigned *minor) {
    ANSWER("DeviceGetMinorNumber", device, (*minor = g->minor, SUCCESS));
}
typedef struct { char legacy[16]; unsigned domain, bus, device, pci_device, subsystem; char bus_id[32]; } Pci;
static int pci(Pci *info, const char *bus, const Gpu *g) {
    memset(info, 0, sizeof *info);
    if (g) {
        info->pci_device = g->pci_id;
        info->subsystem = g->subsystem_id;
    }
    sscanf(bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->legacy, sizeof info->legacy, "%s", strlen(bus) > 12 ? bus + strlen(bus) - 12 : bus);
    return text(info->bus_id, sizeof info->bus_id, bus);
}
int nvmlDeviceGetPciInfo_v3(Handle device, Pci *info) { ANSWER("DeviceGetPciInfo", device, pci(info, g->bus, g)); }
typedef struct { unsigned long long total, free, used; } Memory;
static int memory(Memory *info, Gpu *g) {
    *info = (Memory){g->memory, g->memory, 0};
    return g->memory ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetMemoryInfo(Handle device, Memory *info) { ANSWER("DeviceGetMemoryInfo", device, memory(info, g)); }
int nvmlDeviceGetCudaComputeCapability(Handle device, int *major, int *minor) {
    ANSWER("DeviceGetCudaComputeCapability", device, (*major = g->major, *minor = g->minor_capability, SUCCESS));
}
int nvmlDeviceGetMigMode(Handle device, unsigned *current, unsigned *pending) {
    ANSWER("DeviceGetMigMode", device, g->mig < 0 ? NOT_SUPPORTED : (*current = (unsigned)g->mig, *pending = (unsigned)g->pending, SUCCESS));
}

/* Change the machine, and add that to its file; the lock is held. */
static int record(Gpu *g, const char *what, unsigned a, unsigned b, unsigned c, unsigned d) {
    char line[128];
    snprintf(line, sizeof line, "%u %s %u %u %u %u", (unsigned)(g - machine.gpu), what, a, b, c, d);
    FILE *file = fopen(getenv("MOCK_NVML"), "a");
    if (!file) return OPERATING_SYSTEM;
    int failed = fprintf(file, "do %s\n", line) < 0;
    if (fclose(file) || failed) return OPERATING_SYSTEM;
    look();
    return SUCCESS;
}
static int has_instances(const Gpu *g) {
    for (int at = 0; at < SLOTS; at++)
        if (g->instances[at].used) return 1;
    return 0;
}
static int set_mode(Gpu *g, unsigned mode, unsigned *status) {
    if (g->mig < 0) return NOT_SUPPORTED;
    if (mode > 1) return INVALID_ARGUMENT;
    int same = g->mig == (int)mode;
    *status = same ? SUCCESS : g->busy || has_instances(g) ? IN_USE : g->resetless ? SUCCESS : RESET_REQUIRED;
    return record(g, *status || same ? "pending" : "mode", mode, 0, 0, 0);
}
int nvmlDeviceSetMigMode(Handle device, unsigned mode, unsigned *status) {
    ANSWER("DeviceSetMigMode", device, set_mode(g, mode, status));
}

typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } Fabric1;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} Fabric2;
static int fabric1(Fabric1 *info, Gpu *g) {
    if (!g->has_fabric) return NOT_SUPPORTED;
    memcpy(info->cluster, g->cluster, 16);
    info->status = g->fabric_status;
    info->clique = g->clique;
    info->state = (unsigned char)g->fabric_state;
    return SUCCESS;
}
static int fabric2(Fabric2 *info, Gpu *g) {
    Fabric1 found;
    if (info->version != (sizeof *info | 2u << 24)) return VERSION_MISMATCH;
    int code = fabric1(&found, g);
    if (code) return code;
    memcpy(info->cluster, found.cluster, 16);
    info->status = found.status;
    info->clique = found.clique;
    info->state = found.state;
    return SUCCESS;
}
int nvmlDeviceGetGpuFabricInfo(Handle device, Fabric1 *info) { ANSWER("DeviceGetGpuFabricInfo", device, fabric1(info, g)); }
int nvmlDeviceGetGpuFabricInfoV(Handle device, Fabric2 *info) { ANSWER("DeviceGetGpuFabricInfoV", device, fabric2(info, g)); }

/* --- topology --- */

static int ancestor(Handle one, Handle other, unsigned *level) {
    unsigned first = (unsigned)(one >> 16) - 1, second = (unsigned)(other >> 16) - 1;
    for (unsigned at = 0; at < machine.pairs; at++)
        if ((machine.pair[at].one == first && machine.pair[at].other == second) ||
            (machine.pair[at].one == second && machine.pair[at].other == first)) {
            *level = (unsigned)machine.pair[at].level;
            return SUCCESS;
        }
    return INVALID_ARGUMENT;
}
int nvmlDeviceGetTopologyCommonAncestor(Handle one, Handle other, unsigned *level) {
    ANSWER("DeviceGetTopologyCommonAncestor", one, ancestor(one, other, level));
}
int nvmlDeviceGetNvLinkState(Handle device, unsigned link, unsigned *active) {
    ANSWER("DeviceGetNvLinkState", device,
           !g->links ? NOT_SUPPORTED : link >= g->links ? INVALID_ARGUMENT
                                                        : (*active = (unsigned)g->link_active[link], SUCCESS));
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle device, unsigned link, Pci *info) {
    ANSWER("DeviceGetNvLinkRemotePciInfo", device, link >= g->links ? INVALID_ARGUMENT : pci(info, g->link_bus[link], NULL));
}

/* --- MIG --- */

typedef struct {
    unsigned id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    unsigned long long mib;
} GiProfileInfo;
typedef struct { unsigned id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa; } CiProfileInfo;
typedef struct { Handle device; unsigned id, profile, start, size; } GiInfo;
typedef struct { Handle device, gi; unsigned id, profile, start, size; } CiInfo;
typedef struct {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices;
    unsigned long long mib;
} Attributes;

static const Profile *profile_of(const Profile *list, unsigned count, unsigned number) {
    for (unsigned at = 0; at < count; at++)
        if (list[at].number == number) return &list[at];
    return NULL;
}
static int gi_profile(GiProfileInfo *info, Gpu *g, unsigned number) {
    const Profile *p = profile_of(g->gi_profiles, g->profiles, number);
    if (!p) return number < 18 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    info->id = p->id;
    info->slices = p->slices;
    info->instances = p->most;
    info->multiprocessors = p->multiprocessors;
    info->copy = p->engines[0];
    info->decoders = p->engines[1];
    info->encoders = p->engines[2];
    info->jpeg = p->engines[3];
    info->ofa = p->engines[4];
    info->mib = p->mib;
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceProfileInfo(Handle device, unsigned number, GiProfileInfo *info) {
    ANSWER("DeviceGetGpuInstanceProfileInfo", device, gi_profile(info, g, number));
}
int nvmlDeviceGetMaxMigDeviceCount(Handle device, unsigned *count) {
    ANSWER("DeviceGetMaxMigDeviceCount", device, (*count = g->slots, SUCCESS));
}
int nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned slot, Handle *found) {
    ANSWER("DeviceGetMigDeviceHandleByIndex", device,
           slot >= g->slots || slot >= SLOTS ? INVALID_ARGUMENT
           : !g->devices[slot].used          ? NOT_FOUND
                                             : (*found = (device & ~(Handle)0xFFFF) | (slot + 1), SUCCESS));
}
int nvmlDeviceIsMigDeviceHandle(Handle device, unsigned *is) {
    ANSWER("DeviceIsMigDeviceHandle", device, (*is = d != NULL, SUCCESS));
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle device, Handle *parent) {
    ANSWER("DeviceGetDeviceHandleFromMigDeviceHandle", device,
           !device_of(device) ? INVALID_ARGUMENT : (*parent = device & ~(Handle)0xFFFF, SUCCESS));
}
int nvmlDeviceGetGpuInstanceId(Handle device, unsigned *id) {
    ANSWER("DeviceGetGpuInstanceId", device, !d ? INVALID_ARGUMENT : (*id = d->gi, SUCCESS));
}
int nvmlDeviceGetComputeInstanceId(Handle device, unsigned *id) {
    ANSWER("DeviceGetComputeInstanceId", device, !d ? INVALID_ARGUMENT : (*id = d->ci, SUCCESS));
}
static int attributes(Attributes *info, MigDevice *d) {
    if (!d) return INVALID_ARGUMENT;
    *info = (Attributes){d->multiprocessors, d->engines[0], d->engines[1], d->engines[2], d->engines[3],
                         d->engines[4],      d->gi_slices,  d->ci_slices,  d->mib};
    return SUCCESS;
}
int nvmlDeviceGetAttributes_v2(Handle device, Attributes *info) {
    ANSWER("DeviceGetAttributes", device, attributes(info, d));
}
int nvmlDeviceGetGpuInstanceById(Handle device, unsigned gi, Handle *found) {
    ANSWER("DeviceGetGpuInstanceById", device,
           gi > 0xFF || !instance_of(g, gi) ? NOT_FOUND
                                                : (*found = (device & ~(Handle)0xFFFF) | GI_BIT | gi, SUCCESS));
}
static int gi_info(GiInfo *info, Handle handle, Gpu *g) {
    GpuInstance *i = handle & GI_BIT ? instance_of(g, (unsigned)(handle & 0xFF)) : NULL;
    if (!i) return INVALID_ARGUMENT;
    *info = (GiInfo){handle & ~(Handle)0xFFFF, i->id, i->profile, i->start, i->size};
    return SUCCESS;
}
int nvmlGpuInstanceGetInfo(Handle gi, GiInfo *info) { ANSWER("GpuInstanceGetInfo", gi, gi_info(info, gi, g)); }
int nvmlGpuInstanceGetComputeInstanceById(Handle gi, unsigned ci, Handle *found) {
    ANSWER("GpuInstanceGetComputeInstanceById", gi,
           ci > 0xF || !by_instance(g, (unsigned)(gi & 0xFF), (int)ci)
               ? NOT_FOUND
               : (*found = (gi & ~(Handle)GI_BIT) | CI_BIT | (Handle)ci << 8, SUCCESS));
}
static int ci_info(CiInfo *info, Handle handle, Gpu *g) {
    unsigned gi = (unsigned)(handle & 0xFF), ci = (unsigned)(handle >> 8 & 0xF);
    MigDevice *d = handle & CI_BIT ? by_instance(g, gi, (int)ci) : NULL;
    if (!d) return INVALID_ARGUMENT;
    *info = (CiInfo){.device = handle & ~(Handle)0xFFFF, .id = d->ci, .profile = d->ci_profile};
    return SUCCESS;
}
int nvmlComputeInstanceGetInfo_v2(Handle ci, CiInfo *info) { ANSWER("ComputeInstanceGetInfo", ci, ci_info(info, ci, g)); }
static GpuInstance *instance_at(Handle gi, Gpu *g) {
    return gi & GI_BIT ? instance_of(g, (unsigned)(gi & 0xFF)) : NULL;
}
static const Profile *whole_of(const GpuInstance *i, Gpu *g) {
    return i ? profile_by_id(g->gi_profiles, g->profiles, i->profile) : NULL;
}
static int ci_profile(CiProfileInfo *info, Gpu *g, Handle gi, unsigned number) {
    const Profile *p = profile_of(g->ci_profiles, g->compute_profiles, number), *whole = whole_of(instance_at(gi, g), g);
    if (!whole) return INVALID_ARGUMENT;
    if (!p || p->slices > whole->slices) return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = p->id;
    info->slices = p->slices;
    info->instances = whole->slices / p->slices;
    return SUCCESS;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfo(Handle gi, unsigned number, unsigned engine, CiProfileInfo *info) {
    ANSWER("GpuInstanceGetComputeInstanceProfileInfo", gi, engine ? INVALID_ARGUMENT : ci_profile(info, g, gi, number));
}

/* --- changing MIG --- */

typedef struct { unsigned start, size; } Place;

static int placements(Gpu *g, unsigned id, Place *list, unsigned *count) {
    const Profile *p = profile_by_id(g->gi_profiles, g->profiles, id);
    if (!p) return INVALID_ARGUMENT;
    unsigned found = 0;
    for (unsigned start = 0; start < 32; start++) {
        if (!(p->starts >> start & 1)) continue;
        if (found >= *count) return INSUFFICIENT_SIZE;
        list[found++] = (Place){start, p->size};
    }
    *count = found;
    return SUCCESS;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle device, unsigned id, Place *list, unsigned *count) {
    ANSWER("DeviceGetGpuInstancePossiblePlacements", device, placements(g, id, list, count));
}
static int gpu_instances(Gpu *g, Handle device, unsigned id, Handle *list, unsigned *count) {
    if (!profile_by_id(g->gi_profiles, g->profiles, id)) return INVALID_ARGUMENT;
    if (g->mig < 1) return NOT_SUPPORTED;
    *count = 0;
    for (int at = 0; at < SLOTS; at++)
        if (g->instances[at].used && g->instances[at].profile == id)
            list[(*count)++] = (device & ~(Handle)0xFFFF) | GI_BIT | g->instances[at].id;
    return SUCCESS;
}
int nvmlDeviceGetGpuInstances(Handle device, unsigned id, Handle *list, unsigned *count) {
    ANSWER("DeviceGetGpuInstances", device, gpu_instances(g, device, id, list, count));
}
/* As many of a profile as there may be, places that are free, engines that are left. */
static int fits(Gpu *g, const Profile *p, Place place) {
    unsigned used = 0, alike = 1, engines[5], most[5] = {0};
    memcpy(engines, p->engines, sizeof engines);
    for (int at = 0; at < SLOTS; at++) {
        const Profile *other = g->instances[at].used ? whole_of(&g->instances[at], g) : NULL;
        if (!other) continue;
        used |= ((1u << g->instances[at].size) - 1) << g->instances[at].start;
        alike += other == p;
        for (int kind = 0; kind < 5; kind++) engines[kind] += other->engines[kind];
    }
    for (unsigned at = 0; at < g->profiles; at++)
        for (int kind = 0; kind < 5; kind++)
            if (g->gi_profiles[at].engines[kind] > most[kind]) most[kind] = g->gi_profiles[at].engines[kind];
    for (int kind = 0; kind < 5; kind++)
        if (engines[kind] > most[kind]) return 0;
    return alike <= p->most && !(used & ((1u << place.size) - 1) << place.start);
}
static int create_gi(Gpu *g, Handle device, unsigned id, const Place *place, Handle *made) {
    const Profile *p = profile_by_id(g->gi_profiles, g->profiles, id);
    if (g->mig < 1) return NOT_SUPPORTED;
    if (!p || place->size != p->size || place->start > 31 || !(p->starts >> place->start & 1)) return INVALID_ARGUMENT;
    if (!fits(g, p, *place)) return INSUFFICIENT_RESOURCES;
    unsigned slices = 0;
    for (unsigned at = 0; at < g->profiles; at++)
        if (g->gi_profiles[at].size > slices) slices = g->gi_profiles[at].size;
    unsigned gi = slices / p->size - 1 + place->start / p->size;
    *made = (device & ~(Handle)0xFFFF) | GI_BIT | gi;
    return record(g, "gi+", gi, id, place->start, place->size);
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Handle device, unsigned id, const Place *place, Handle *made) {
    ANSWER("DeviceCreateGpuInstanceWithPlacement", device, create_gi(g, device, id, place, made));
}
static int destroy_gi(Gpu *g, GpuInstance *i) {
    if (!i) return INVALID_ARGUMENT;
    return by_instance(g, i->id, -1) ? IN_USE : record(g, "gi-", i->id, 0, 0, 0);
}
int nvmlGpuInstanceDestroy(Handle gi) { ANSWER("GpuInstanceDestroy", gi, destroy_gi(g, instance_at(gi, g))); }
static Handle ci_handle(Handle gi, unsigned ci) { return (gi & ~(Handle)GI_BIT) | CI_BIT | (Handle)ci << 8; }
static int compute_instances(Gpu *g, Handle gi, unsigned id, Handle *list, unsigned *count) {
    if (!instance_at(gi, g) || !profile_by_id(g->ci_profiles, g->compute_profiles, id)) return INVALID_ARGUMENT;
    *count = 0;
    for (int slot = 0; slot < SLOTS; slot++)
        if (g->devices[slot].used && g->devices[slot].gi == (gi & 0xFF) && g->devices[slot].ci_profile == id)
            list[(*count)++] = ci_handle(gi, g->devices[slot].ci);
    return SUCCESS;
}
int nvmlGpuInstanceGetComputeInstances(Handle gi, unsigned id, Handle *list, unsigned *count) {
    ANSWER("GpuInstanceGetComputeInstances", gi, compute_instances(g, gi, id, list, count));
}
static int create_ci(Gpu *g, Handle gi, unsigned id, Handle *made) {
    const Profile *p = profile_by_id(g->ci_profiles, g->compute_profiles, id), *whole = whole_of(instance_at(gi, g), g);
    if (!p || !whole) return INVALID_ARGUMENT;
    unsigned slices = p->slices, ci = 0;
    for (int slot = 0; slot < SLOTS; slot++)
        if (g->devices[slot].used && g->devices[slot].gi == (gi & 0xFF)) slices += g->devices[slot].ci_slices;
    if (slices > whole->slices) return INSUFFICIENT_RESOURCES;
    while (by_instance(g, (unsigned)(gi & 0xFF), (int)ci)) ci++;
    *made = ci_handle(gi, ci);
    return record(g, "ci+", (unsigned)(gi & 0xFF), ci, id, 0);
}
int nvmlGpuInstanceCreateComputeInstance(Handle gi, unsigned id, Handle *made) {
    ANSWER("GpuInstanceCreateComputeInstance", gi, create_ci(g, gi, id, made));
}
static int destroy_ci(Gpu *g, Handle ci) {
    MigDevice *d = ci & CI_BIT ? by_instance(g, (unsigned)(ci & 0xFF), (int)(ci >> 8 & 0xF)) : NULL;
    if (!d) return INVALID_ARGUMENT;
    return g->busy ? IN_USE : record(g, "ci-", d->gi, d->ci, 0, 0);
}
int nvmlComputeInstanceDestroy(Handle ci) { ANSWER("ComputeInstanceDestroy", ci, destroy_ci(g, ci)); }

/* --- events --- */

typedef struct { Handle device; unsigned long long kind, data; unsigned gi, ci; } EventData;

int nvmlEventSetCreate(Set **made) {
    pthread_mutex_lock(&lock);
    int code = system_refused("EventSetCreate");
    Set *fresh = NULL;
    for (int at = 0; !code && at < SETS && !fresh; at++)
        if (!sets[at].used) fresh = &sets[at];
    if (!code && !fresh) code = INSUFFICIENT_SIZE;
    if (!code) {
        memset(fresh, 0, sizeof *fresh);
        fresh->used = 1;
        fresh->seen = machine.events ? machine.event[machine.events - 1].number : 0;
        *made = fresh;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlEventSetFree(Set *set) {
    pthread_mutex_lock(&lock);
    set->used = 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
int nvmlDeviceGetSupportedEventTypes(Handle device, unsigned long long *kinds) {
    ANSWER("DeviceGetSupportedEventTypes", device, (*kinds = g->supported, SUCCESS));
}
static int enlist(Set *set, Gpu *g, unsigned long long kinds) {
    if (kinds & ~g->supported || set->registered >= GPUS) return NOT_SUPPORTED;
    snprintf(set->gpu[set->registered], sizeof set->gpu[0], "%s", g->uuid);
    set->mask[set->registered++] = kinds;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(Handle device, unsigned long long kinds, Set *set) {
    ANSWER("DeviceRegisterEvents", device, enlist(set, g, kinds));
}
/* 1 if the event concerns the set; a GPU of "-" is one whose UUID cannot be read */
static int concerns(const Set *set, const Event *e) {
    for (unsigned at = 0; at < set->registered; at++)
        if (e->code || ((!strcmp(e->gpu, "-") || !strcmp(e->gpu, set->gpu[at])) && e->kind & set->mask[at])) return 1;
    return 0;
}
static int take(Set *set, EventData *data) {
    for (unsigned at = 0; at < machine.events; at++) {
        const Event *e = &machine.event[at];
        if (e->number <= set->seen) continue;
        set->seen = e->number;
        if (!concerns(set, e)) continue;
        if (e->code) return e->code;
        *data = (EventData){.kind = e->kind, .data = e->xid, .gi = e->gi, .ci = e->ci};
        for (unsigned index = 0; index < machine.gpus; index++)
            if (!strcmp(machine.gpu[index].uuid, e->gpu)) data->device = of_gpu(index);
        return SUCCESS;
    }
    return TIMEOUT;
}
int nvmlEventSetWait_v2(Set *set, EventData *data, unsigned timeout_ms) {
    int code = TIMEOUT;
    for (unsigned waited = 0; code == TIMEOUT && waited <= timeout_ms; waited += 2) {
        pthread_mutex_lock(&lock);
        code = system_refused("EventSetWait");
        if (!code) code = take(set, data);
        pthread_mutex_unlock(&lock);
        if (code == TIMEOUT) usleep(2000);
    }
    return code;
}

/* --- what a GPU shows of itself --- */

static int figure(const Gpu *g, const char *key, double *value) {
    for (unsigned at = 0; at < g->figures; at++)
        if (!strcmp(g->figure[at].key, key)) {
            if (!g->figure[at].code) *value = g->figure[at].value;
            return g->figure[at].code;
        }
    return NOT_SUPPORTED;
}
static int whole(const Gpu *g, const char *key, unsigned *to) {
    double value = 0;
    int code = figure(g, key, &value);
    if (!code) *to = (unsigned)value;
    return code;
}
static int numbered(const Gpu *g, const char *key, unsigned number, unsigned *to) {
    char full[32];
    snprintf(full, sizeof full, "%s.%u", key, number);
    return whole(g, full, to);
}
static int word(const Gpu *g, const char *key, char *to, unsigned size) {
    for (unsigned at = 0; at < g->words; at++)
        if (!strcmp(g->word[at].key, key)) return text(to, size, g->word[at].text);
    return NOT_SUPPORTED;
}
int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    pthread_mutex_lock(&lock);
    int code = system_refused("SystemGetNVMLVersion");
    char full[96];
    snprintf(full, sizeof full, "%d.%s", machine.cuda / 1000, machine.driver);
    if (!code) code = text(version, length, full);
    pthread_mutex_unlock(&lock);
    return code;
}
int nvmlDeviceGetClockInfo(Handle device, unsigned kind, unsigned *mhz) {
    ANSWER("DeviceGetClockInfo", device, numbered(g, "clock", kind, mhz));
}
int nvmlDeviceGetTemperature(Handle device, unsigned sensor, unsigned *celsius) {
    ANSWER("DeviceGetTemperature", device, numbered(g, "temperature", sensor, celsius));
}
int nvmlDeviceGetPowerUsage(Handle device, unsigned *mw) { ANSWER("DeviceGetPowerUsage", device, whole(g, "power", mw)); }
typedef struct { unsigned gpu, memory; } Utilization;
static int utilization(Utilization *use, Gpu *g) {
    int code = whole(g, "util.gpu", &use->gpu);
    return code ? code : whole(g, "util.memory", &use->memory);
}
int nvmlDeviceGetUtilizationRates(Handle device, Utilization *use) {
    ANSWER("DeviceGetUtilizationRates", device, utilization(use, g));
}
int nvmlDeviceGetEncoderUtilization(Handle device, unsigned *use, unsigned *period) {
    ANSWER("DeviceGetEncoderUtilization", device, (*period = 167000, whole(g, "util.encoder", use)));
}
int nvmlDeviceGetDecoderUtilization(Handle device, unsigned *use, unsigned *period) {
    ANSWER("DeviceGetDecoderUtilization", device, (*period = 167000, whole(g, "util.decoder", use)));
}
static int reasons(const Gpu *g, unsigned long long *bits) {
    unsigned found = 0;
    int code = whole(g, "reasons", &found);
    if (!code) *bits = found;
    return code;
}
int nvmlDeviceGetCurrentClocksEventReasons(Handle device, unsigned long long *bits) {
    ANSWER("DeviceGetCurrentClocksEventReasons", device, reasons(g, bits));
}
int nvmlDeviceGetPerformanceState(Handle device, unsigned *state) {
    ANSWER("DeviceGetPerformanceState", device, whole(g, "pstate", state));
}
int nvmlDeviceGetBrand(Handle device, unsigned *brand) { ANSWER("DeviceGetBrand", device, whole(g, "brand", brand)); }
int nvmlDeviceGetSerial(Handle device, char *to, unsigned length) {
    ANSWER("DeviceGetSerial", device, word(g, "serial", to, length));
}
int nvmlDeviceGetVbiosVersion(Handle device, char *to, unsigned length) {
    ANSWER("DeviceGetVbiosVersion", device, word(g, "vbios", to, length));
}
int nvmlDeviceGetInforomImageVersion(Handle device, char *to, unsigned length) {
    ANSWER("DeviceGetInforomImageVersion", device, word(g, "inforom", to, length));
}
static int inforom(const Gpu *g, unsigned object, char *to, unsigned length) {
    char key[32];
    snprintf(key, sizeof key, "inforom.%u", object);
    return word(g, key, to, length);
}
int nvmlDeviceGetInforomVersion(Handle device, unsigned object, char *to, unsigned length) {
    ANSWER("DeviceGetInforomVersion", device, inforom(g, object, to, length));
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
static int memory2(Memory2 *info, const Gpu *g, const MigDevice *d) {
    if (info->version != (sizeof *info | 2u << 24)) return VERSION_MISMATCH;
    double values[4] = {0};
    static const char *const keys[] = {"total", "reserved", "free", "used"};
    for (int at = 0; at < 4; at++) {
        char key[32];
        if (d) snprintf(key, sizeof key, "memory.%u.%s", d->gi, keys[at]);
        else snprintf(key, sizeof key, "memory.%s", keys[at]);
        int code = figure(g, key, &values[at]);
        if (code) return code;
    }
    info->total = (unsigned long long)values[0];
    info->reserved = (unsigned long long)values[1];
    info->free = (unsigned long long)values[2];
    info->used = (unsigned long long)values[3];
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(Handle device, Memory2 *info) { ANSWER("DeviceGetMemoryInfo_v2", device, memory2(info, g, d)); }
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } value;
} FieldValue;
static int field_values(const Gpu *g, int count, FieldValue *values) {
    for (int at = 0; at < count; at++) {
        char key[32];
        double value = 0;
        snprintf(key, sizeof key, "field.%u.%u", values[at].field, values[at].scope);
        values[at].code = figure(g, key, &value);
        values[at].type = 3;
        values[at].value.ull = (unsigned long long)value;
    }
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(Handle device, int count, FieldValue *values) {
    ANSWER("DeviceGetFieldValues", device, field_values(g, count, values));
}
int nvmlDeviceGetP2PStatus(Handle one, Handle other, unsigned capability, unsigned *status) {
    ANSWER("DeviceGetP2PStatus", one, capability != 2 ? INVALID_ARGUMENT
                                                      : numbered(g, "p2p", (unsigned)(other >> 16) - 1, status));
}
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } ProcessInfo;
static int processes(const Gpu *g, unsigned *count, ProcessInfo *infos) {
    if (*count < g->processes) return *count = g->processes, INSUFFICIENT_SIZE;
    *count = g->processes;
    for (unsigned at = 0; at < g->processes; at++)
        infos[at] = (ProcessInfo){g->process[at].pid, g->process[at].bytes, g->process[at].gi, ~0u};
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned *count, ProcessInfo *infos) {
    ANSWER("DeviceGetComputeRunningProcesses", device, processes(g, count, infos));
}
typedef struct { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; } ProcessSample;
static int samples(const Gpu *g, unsigned *count, ProcessSample *found) {
    if (g->mig > 0) return NOT_SUPPORTED;
    if (!g->processes) return *count = 0, NOT_FOUND;
    if (*count < g->processes || !found) return *count = g->processes, INSUFFICIENT_SIZE;
    *count = g->processes;
    for (unsigned at = 0; at < g->processes; at++)
        found[at] = (ProcessSample){.pid = g->process[at].pid, .timestamp = at + 1, .sm = g->process[at].util};
    return SUCCESS;
}
int nvmlDeviceGetProcessUtilization(Handle device, ProcessSample *found, unsigned *count, unsigned long long since) {
    (void)since;
    ANSWER("DeviceGetProcessUtilization", device, samples(g, count, found));
}

/* --- GPM: a sample remembers whose it is --- */

typedef struct { unsigned index; int gi, taken; } GpmSample;
typedef struct { unsigned id; int code; double value; const char *info[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *one, *other; GpmMetric metrics[]; } GpmMetrics;
typedef struct { unsigned version, supported; } GpmSupport;

int nvmlGpmQueryDeviceSupport(Handle device, GpmSupport *support) {
    ANSWER("GpmQueryDeviceSupport", device, (support->supported = g->major >= 9, SUCCESS));
}
int nvmlGpmSampleAlloc(GpmSample **made) { return (*made = calloc(1, sizeof **made)) ? SUCCESS : 20; }
int nvmlGpmSampleFree(GpmSample *sample) { return free(sample), SUCCESS; }
int nvmlGpmSampleGet(Handle device, GpmSample *sample) {
    ANSWER("GpmSampleGet", device, (*sample = (GpmSample){(unsigned)(device >> 16) - 1, -1, 1}, SUCCESS));
}
int nvmlGpmMigSampleGet(Handle device, unsigned gi, GpmSample *sample) {
    ANSWER("GpmMigSampleGet", device, !by_instance(g, gi, -1) ? NOT_FOUND
           : (*sample = (GpmSample){(unsigned)(device >> 16) - 1, (int)gi, 1}, SUCCESS));
}
static int metrics(GpmMetrics *asked) {
    const GpmSample *s = asked->one;
    if (asked->version != 1 || !s->taken || !asked->other->taken || s->gi != asked->other->gi) return INVALID_ARGUMENT;
    if (s->index != asked->other->index || s->index >= machine.gpus) return INVALID_ARGUMENT;
    for (unsigned at = 0; at < asked->count; at++) {
        char key[32];
        snprintf(key, sizeof key, "gpm.%d.%u", s->gi, asked->metrics[at].id);
        asked->metrics[at].code = figure(&machine.gpu[s->index], key, &asked->metrics[at].value);
    }
    return SUCCESS;
}
int nvmlGpmMetricsGet(GpmMetrics *asked) {
    pthread_mutex_lock(&lock);
    int code = system_refused("GpmMetricsGet");
    if (!code) code = metrics(asked);
    pthread_mutex_unlock(&lock);
    return code;
}
