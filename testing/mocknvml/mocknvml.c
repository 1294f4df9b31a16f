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
 *   giprofile NUMBER ID SLICES MIB MULTIPROCESSORS | ciprofile NUMBER ID SLICES | link BUS ACTIVE
 *   migdevice SLOT UUID GI CI GI-PROFILE-ID CI-PROFILE-ID MIB MULTIPROCESSORS GI-SLICES CI-SLICES COPY DEC ENC JPEG OFA
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
    TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};
enum { GPUS = 32, SLOTS = 16, PROFILES = 32, LINKS = 36, FAILURES = 16, EVENTS = 1024, SETS = 256, PAIRS = GPUS * GPUS };

typedef struct { unsigned number, id, slices, multiprocessors; unsigned long long mib; } Profile;
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
    int major, minor_capability, mig, lost;
    unsigned long long memory, supported;
    int has_fabric, fabric_status, fabric_state;
    unsigned char cluster[16];
    unsigned clique;
    Profile gi_profiles[PROFILES], ci_profiles[PROFILES];
    MigDevice devices[SLOTS];
    char link_bus[LINKS][32];
    int link_active[LINKS];
    Failure failed[FAILURES];
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

static void read_gpu_line(Gpu *g, const char *key, const char *rest) {
    if (!strcmp(key, "minor")) sscanf(rest, "%u", &g->minor);
    else if (!strcmp(key, "name")) snprintf(g->name, sizeof g->name, "%s", rest);
    else if (!strcmp(key, "bus")) snprintf(g->bus, sizeof g->bus, "%s", rest);
    else if (!strcmp(key, "memory")) sscanf(rest, "%llu", &g->memory);
    else if (!strcmp(key, "compute")) sscanf(rest, "%d %d", &g->major, &g->minor_capability);
    else if (!strcmp(key, "mig")) sscanf(rest, "%d", &g->mig);
    else if (!strcmp(key, "lost")) sscanf(rest, "%d", &g->lost);
    else if (!strcmp(key, "supported")) sscanf(rest, "%llu", &g->supported);
    else if (!strcmp(key, "slots")) sscanf(rest, "%u", &g->slots);
    else if (!strcmp(key, "fabric")) {
        char hex[33] = "";
        g->has_fabric = sscanf(rest, "%32s %d %u %d", hex, &g->fabric_status, &g->clique, &g->fabric_state) == 4;
        for (int at = 0; at < 16; at++) sscanf(hex + 2 * at, "%2hhx", &g->cluster[at]);
    } else if (!strcmp(key, "giprofile") && g->profiles < PROFILES) {
        Profile *p = &g->gi_profiles[g->profiles++];
        sscanf(rest, "%u %u %u %llu %u", &p->number, &p->id, &p->slices, &p->mib, &p->multiprocessors);
    } else if (!strcmp(key, "ciprofile") && g->compute_profiles < PROFILES) {
        Profile *p = &g->ci_profiles[g->compute_profiles++];
        sscanf(rest, "%u %u %u", &p->number, &p->id, &p->slices);
    } else if (!strcmp(key, "link") && g->links < LINKS) {
        sscanf(rest, "%31s %d", g->link_bus[g->links], &g->link_active[g->links]);
        g->links++;
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
    } else if (!strcmp(line, "fail")) {
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
static MigDevice *by_instance(Gpu *g, unsigned gi, int ci) {
    for (int slot = 0; slot < SLOTS; slot++) {
        MigDevice *d = &g->devices[slot];
        if (d->used && d->gi == gi && (ci < 0 || d->ci == (unsigned)ci)) return d;
    }
    return NULL;
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
static int pci(Pci *info, const char *bus) {
    memset(info, 0, sizeof *info);
    sscanf(bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->legacy, sizeof info->legacy, "%s", strlen(bus) > 12 ? bus + strlen(bus) - 12 : bus);
    return text(info->bus_id, sizeof info->bus_id, bus);
}
int nvmlDeviceGetPciInfo_v3(Handle device, Pci *info) { ANSWER("DeviceGetPciInfo", device, pci(info, g->bus)); }
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
    ANSWER("DeviceGetMigMode", device, g->mig < 0 ? NOT_SUPPORTED : (*current = *pending = (unsigned)g->mig, SUCCESS));
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
    ANSWER("DeviceGetNvLinkRemotePciInfo", device, link >= g->links ? INVALID_ARGUMENT : pci(info, g->link_bus[link]));
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
    info->multiprocessors = p->multiprocessors;
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
           gi > 0xFF || !by_instance(g, gi, -1) ? NOT_FOUND
                                                : (*found = (device & ~(Handle)0xFFFF) | GI_BIT | gi, SUCCESS));
}
static int gi_info(GiInfo *info, Handle handle, Gpu *g) {
    MigDevice *d = handle & GI_BIT ? by_instance(g, (unsigned)(handle & 0xFF), -1) : NULL;
    if (!d) return INVALID_ARGUMENT;
    *info = (GiInfo){.device = handle & ~(Handle)0xFFFF, .id = d->gi, .profile = d->gi_profile};
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
static int ci_profile(CiProfileInfo *info, Gpu *g, unsigned number) {
    const Profile *p = profile_of(g->ci_profiles, g->compute_profiles, number);
    if (!p) return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = p->id;
    info->slices = p->slices;
    return SUCCESS;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfo(Handle gi, unsigned number, unsigned engine, CiProfileInfo *info) {
    ANSWER("GpuInstanceGetComputeInstanceProfileInfo", gi, engine ? INVALID_ARGUMENT : ci_profile(info, g, number));
}

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
