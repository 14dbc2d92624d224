/* A pretend libnvidia-ml.so.1, for driving the real pynvml without a card.
 *
 * Its state is the text file named by FAKE_NVML_STATE, read again at every call, so that a test
 * changes the machine while a program looks at it. One thing a line, values without spaces
 * ('_' is shown as ' ' in names):
 *
 *     driver version=550.54.15 cuda=12040 [error.init=9]
 *     card.0 uuid=GPU-... name=NVIDIA_A100 bus=00000000:01:00.0 minor=0 total=N used=N ...
 *     mig.0.1 uuid=MIG-... name=... total=N used=N
 *     process.0 kind=C pid=4242 memory=1048576          (mig: process.0.1; memory=-1: not told)
 *     process.0 ... sm=80 mem=10 enc=0 dec=0            (what it computes; all 0 where left out)
 *     card.0 ... drain=0.5                              (seconds; see below)
 *     event card=0 type=8 data=79 gi=1 ci=0             (gi, ci: all where they are left out)
 *
 * On a card, `error.CALL=N` makes that call return N, `hang=CALL` makes it never return and
 * `crash=CALL` kills the caller; CALL is open, uuid, memory, processes, mode, ... as below.
 * A process that writes a number of bytes into the file CARD.PID of the directory $FAKE_NVML_STATE.held
 * has them on that card for as long as it lives. Then nobody has them, and they come back little by
 * little, within the card's `drain` seconds after the library first saw that the process is gone.
 *
 * `wait` and `event_set` are on the driver's line. Events are only ever added: those that stood
 * there when an event set was made were before its time.
 * With -DOLD the symbols are missing that drivers before R510 lack.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *dev;

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { WIDTH = 1024, MIG = 1000, PER_CARD = 16 };

static int initialised;

/* ---- the state ---- */

/* The n-th line whose first word is `what`, into `line`; 0 when there is none. */
static int find(const char *what, int n, char *line) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t width = strlen(what);
    int found = 0;
    while (file && !found && fgets(line, WIDTH, file)) {
        line[strcspn(line, "\n")] = 0;
        found = !strncmp(line, what, width) && (line[width] == ' ' || !line[width]) && n-- == 0;
    }
    if (file) fclose(file);
    return found;
}

/* The value of key= in a line, into `out`; 0 when it is absent. */
static int get(const char *line, const char *key, char *out) {
    char want[64];
    const char *at;
    snprintf(want, sizeof want, " %s=", key);
    at = strstr(line, want);
    if (!at) return 0;
    at += strlen(want);
    snprintf(out, WIDTH, "%.*s", (int)strcspn(at, " "), at);
    return 1;
}

static u64 number(const char *line, const char *key, u64 otherwise) {
    char text[WIDTH];
    return get(line, key, text) ? strtoull(text, NULL, 0) : otherwise;
}

/* What a line says about a call: to fail, to hang, to crash. */
static int gate(const char *line, const char *call) {
    char key[64], text[WIDTH];
    if (get(line, "hang", text) && !strcmp(text, call))
        for (;;) pause();
    if (get(line, "crash", text) && !strcmp(text, call)) abort();
    snprintf(key, sizeof key, "error.%s", call);
    return (int)number(line, key, OK);
}

/* Handles: a card is 1 + its index; a MIG instance 1000 + card * 16 + its number. */
static long id(dev d) { return (long)d; }
static int is_mig(dev d) { return id(d) >= MIG; }
static long card_of(dev d) { return is_mig(d) ? (id(d) - MIG) / PER_CARD : id(d) - 1; }

static void word(dev d, const char *kind, char *out) {
    if (is_mig(d))
        snprintf(out, 64, "%s.%ld.%ld", kind, card_of(d), (id(d) - MIG) % PER_CARD);
    else
        snprintf(out, 64, "%s.%ld", kind, card_of(d));
}

/* The device's line, and what it says about this call. */
static int line_of(dev d, const char *call, char *line) {
    char what[64];
    if (!initialised) return UNINITIALIZED;
    word(d, is_mig(d) ? "mig" : "card", what);
    if (!find(what, 0, line)) return NOT_FOUND;
    return gate(line, call);
}

static int text_of(dev d, const char *key, char *out, u32 size) {
    char line[WIDTH], text[WIDTH];
    int code = line_of(d, key, line);
    if (code) return code;
    if (!get(line, key, text)) return NOT_SUPPORTED;
    for (char *c = text; *c && !strcmp(key, "name"); c++)
        if (*c == '_') *c = ' ';
    snprintf(out, size, "%s", text);
    return OK;
}

static int number_of(dev d, const char *key, u32 *out) {
    char line[WIDTH], text[WIDTH];
    int code = line_of(d, key, line);
    if (code) return code;
    if (!get(line, key, text)) return NOT_SUPPORTED;
    *out = (u32)strtoul(text, NULL, 0);
    return OK;
}

/* ---- the library and the system ---- */

int nvmlInitWithFlags(u32 flags) {
    char line[WIDTH] = "";
    int code;
    (void)flags;
    find("driver", 0, line);
    code = gate(line, "init");
    if (!code) initialised++;
    return code;
}

int nvmlShutdown(void) {
    initialised -= initialised > 0;
    return OK;
}

const char *nvmlErrorString(int code) {
    return code == 19 ? "In use by another client" : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, u32 size) {
    char line[WIDTH] = "", text[WIDTH];
    if (!find("driver", 0, line) || !get(line, "version", text)) return NOT_SUPPORTED;
    snprintf(out, size, "%s", text);
    return gate(line, "version");
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    char line[WIDTH] = "";
    find("driver", 0, line);
    *out = (int)number(line, "cuda", 0);
    return gate(line, "cuda");
}

#ifndef OLD
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }
#endif

int nvmlDeviceGetCount_v2(u32 *out) {
    char line[WIDTH], what[64];
    if (!initialised) return UNINITIALIZED;
    for (*out = 0;; ++*out) {
        snprintf(what, sizeof what, "card.%u", *out);
        if (!find(what, 0, line)) break;
    }
    find("driver", 0, line);
    return gate(line, "count");
}

/* ---- handles ---- */

int nvmlDeviceGetHandleByIndex_v2(u32 index, dev *out) {
    char line[WIDTH];
    u32 count = 0;
    *out = (dev)(long)(index + 1);
    if (!nvmlDeviceGetCount_v2(&count) && index >= count) return INVALID_ARGUMENT;
    return line_of(*out, "open", line);
}

static int search(const char *key, const char *value, dev *out) {
    char text[WIDTH];
    u32 count = 0;
    nvmlDeviceGetCount_v2(&count);
    for (u32 n = 0; n < count; n++) {
        *out = (dev)(long)(n + 1);
        if (!text_of(*out, key, text, WIDTH) && !strcasecmp(text, value)) return OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, dev *out) { return search("uuid", uuid, out); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, dev *out) { return search("bus", bus, out); }

int nvmlDeviceGetMigMode(dev d, u32 *current, u32 *pending) {
    int code = number_of(d, "mig_mode", current);
    *pending = *current;
    return code;
}
int nvmlDeviceGetDriverModel(dev d, u32 *current, u32 *pending) { /* of older bindings */
    return nvmlDeviceGetDriverModel_v2(d, current, pending);
}

int nvmlDeviceGetMaxMigDeviceCount(dev d, u32 *out) {
    char line[WIDTH];
    *out = 7;
    return line_of(d, "mig_count", line);
}

int nvmlDeviceGetMigDeviceHandleByIndex(dev d, u32 n, dev *out) {
    char line[WIDTH];
    *out = (dev)(MIG + card_of(d) * PER_CARD + (long)n);
    return line_of(*out, "open", line);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(dev d, dev *out) {
    *out = (dev)(card_of(d) + 1);
    return OK;
}

/* ---- what does not change ---- */

int nvmlDeviceGetIndex(dev d, u32 *out) {
    *out = (u32)card_of(d);
    return OK;
}

int nvmlDeviceGetUUID(dev d, char *out, u32 size) { return text_of(d, "uuid", out, size); }
int nvmlDeviceGetName(dev d, char *out, u32 size) { return text_of(d, "name", out, size); }
int nvmlDeviceGetMinorNumber(dev d, u32 *out) { return number_of(d, "minor", out); }

struct pci {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(dev d, struct pci *out) {
    memset(out, 0, sizeof *out);
    return text_of(d, "bus", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetCudaComputeCapability(dev d, int *major, int *minor) {
    char text[WIDTH];
    int code = text_of(d, "capability", text, WIDTH);
    *major = 8, *minor = 0;
    if (!code) sscanf(text, "%d.%d", major, minor);
    return code;
}

int nvmlDeviceGetCpuAffinity(dev d, u32 size, u64 *out) {
    char line[WIDTH];
    int code = line_of(d, "affinity", line);
    if (code) return code;
    if (!number(line, "affinity", 0)) return NOT_SUPPORTED;
    memset(out, 0, size * sizeof *out);
    out[0] = number(line, "affinity", 0);
    return OK;
}

/* ---- links: `links=` has the far end of each, comma-separated: a bus id, "switch", or "down" ---- */

static int far_end(dev d, u32 link, char *out) {
    char text[WIDTH];
    int code = text_of(d, "links", text, WIDTH);
    if (code) return code;
    for (char *end = strtok(text, ","); end; end = strtok(NULL, ","))
        if (link-- == 0) return snprintf(out, WIDTH, "%s", end), OK;
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkState(dev d, u32 link, u32 *out) {
    char end[WIDTH];
    int code = far_end(d, link, end);
    if (!code) *out = !!strcmp(end, "down");
    return code;
}

#ifndef OLD
int nvmlDeviceGetNvLinkRemoteDeviceType(dev d, u32 link, u32 *out) {
    char end[WIDTH];
    int code = far_end(d, link, end);
    if (!code) *out = strcmp(end, "switch") ? 0 : 2;
    return code;
}
#endif

int nvmlDeviceGetNvLinkRemotePciInfo_v2(dev d, u32 link, struct pci *out) {
    char end[WIDTH];
    int code = far_end(d, link, end);
    memset(out, 0, sizeof *out);
    if (!code && !strcmp(end, "switch")) strcpy(end, "00000000:C0:00.0");
    if (!code) snprintf(out->bus_id, sizeof out->bus_id, "%.31s", end);
    return code;
}

/* ---- memory that processes hold ---- */

static int alive(long pid) {
    char path[64], text[512] = "", *after;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    fgets(text, sizeof text, file);
    fclose(file);
    after = strrchr(text, ')');
    return after && after[1] && after[2] != 'Z' && after[2] != 'X';
}

/* The share of a process's memory that is not back yet; notes when it was first seen to be gone. */
static double left(const char *path, double drain) {
    char gone[WIDTH + 400];
    struct stat at;
    struct timespec now;
    snprintf(gone, sizeof gone, "%s.gone", path);
    if (stat(gone, &at)) {
        close(open(gone, O_CREAT | O_WRONLY, 0600));
        return drain > 0;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    double since = (double)(now.tv_sec - at.st_mtim.tv_sec) + (double)(now.tv_nsec - at.st_mtim.tv_nsec) / 1e9;
    return since < drain ? 1 - since / drain : 0;
}

/* The bytes held on a card; with `pid`, the n-th process that holds some, or 0. */
static u64 held(dev d, const char *line, int n, u32 *pid) {
    char folder[WIDTH], path[WIDTH + 300], text[64];
    u64 sum = 0;
    struct dirent *entry;
    snprintf(folder, sizeof folder, "%s.held", getenv("FAKE_NVML_STATE"));
    DIR *dir = is_mig(d) ? NULL : opendir(folder);
    while (dir && (entry = readdir(dir))) {
        long card, who;
        int end = 0;
        if (sscanf(entry->d_name, "%ld.%ld%n", &card, &who, &end) < 2 || entry->d_name[end]) continue;
        if (card != card_of(d)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        u64 bytes = fgets(text, sizeof text, file) ? strtoull(text, NULL, 0) : 0;
        fclose(file);
        int here = alive(who);
        if (pid) {
            if (!here || n--) continue;
            *pid = (u32)who;
            sum = bytes;
            break;
        }
        sum += here ? bytes : (u64)((double)bytes * left(path, get(line, "drain", text) ? atof(text) : 0));
    }
    if (dir) closedir(dir);
    return sum;
}

/* ---- what does ---- */

struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };

static int memory_of(dev d, struct memory_v2 *out) {
    char line[WIDTH];
    int code = line_of(d, "memory", line);
    if (code) return code;
    out->total = number(line, "total", 0);
    out->reserved = number(line, "reserved", 0);
    out->used = number(line, "used", 0) + held(d, line, 0, NULL);
    out->free = out->total - out->reserved - out->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo(dev d, struct memory *out) {
    struct memory_v2 both;
    int code = memory_of(d, &both);
    if (!code) *out = (struct memory){both.total, both.free, both.used + both.reserved};
    return code;
}

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(dev d, struct memory_v2 *out) { return memory_of(d, out); }
#endif

struct process { u32 pid; u64 memory; u32 gpu_instance, compute_instance; };

static int processes(dev d, char kind, u32 *count, struct process *out) {
    char what[64], line[WIDTH], text[WIDTH];
    u32 room = out ? *count : 0;
    int code = line_of(d, "processes", line);
    if (code) return code;
    word(d, "process", what);
    *count = 0;
    for (int n = 0; find(what, n, line); n++) {
        if (!get(line, "kind", text) || text[0] != kind) continue;
        if (*count < room)
            out[*count] = (struct process){(u32)number(line, "pid", 0), number(line, "memory", -1), 0, 0};
        ++*count;
    }
    u32 pid;
    u64 bytes;
    for (int n = 0; kind == 'C' && (bytes = held(d, line, n, &pid)); n++) {
        if (*count < room) out[*count] = (struct process){pid, bytes, 0, 0};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : OK;
}

#define PROCESSES(NAME, KIND) \
    int NAME(dev d, u32 *count, struct process *out) { return processes(d, KIND, count, out); }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G')
#ifndef OLD
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M')
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')
#endif

struct utilization { u32 gpu, memory; };

int nvmlDeviceGetUtilizationRates(dev d, struct utilization *out) {
    char line[WIDTH];
    int code = is_mig(d) ? NOT_SUPPORTED : number_of(d, "utilization", &out->gpu);
    out->memory = code || line_of(d, "bandwidth", line) ? 0 : (u32)number(line, "bandwidth", 0);
    return code;
}

/* Of each process that did something: the driver samples all of them all the time. */
struct work { u32 pid; u64 at; u32 sm, memory, encoder, decoder; };

int nvmlDeviceGetProcessUtilization(dev d, struct work *out, u32 *count, u64 since) {
    char what[64], line[WIDTH];
    u32 room = out ? *count : 0;
    int code = is_mig(d) ? NOT_SUPPORTED : line_of(d, "work", line);
    if (code) return code;
    word(d, "process", what);
    *count = 0;
    for (int n = 0; find(what, n, line); n++) {
        struct work one = {(u32)number(line, "pid", 0), since + 1, (u32)number(line, "sm", 0),
                           (u32)number(line, "mem", 0), (u32)number(line, "enc", 0),
                           (u32)number(line, "dec", 0)};
        if (!(one.sm | one.memory | one.encoder | one.decoder)) continue;
        if (*count < room) out[*count] = one;
        ++*count;
    }
    if (!*count) return NOT_FOUND;
    return *count > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetTotalEnergyConsumption(dev d, u64 *out) {
    char line[WIDTH], text[WIDTH];
    int code = is_mig(d) ? NOT_SUPPORTED : line_of(d, "energy", line);
    if (code) return code;
    if (!get(line, "energy", text)) return NOT_SUPPORTED;
    *out = strtoull(text, NULL, 0);
    return OK;
}

int nvmlDeviceGetTemperature(dev d, int sensor, u32 *out) {
    (void)sensor;
    return number_of(d, "temperature", out);
}

int nvmlDeviceGetPowerUsage(dev d, u32 *out) { return number_of(d, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(dev d, u32 *out) { return number_of(d, "power_limit", out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(dev d, u64 *out) {
    u32 reasons = 0;
    int code = number_of(d, "throttled", &reasons);
    *out = reasons;
    return code;
}
#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(dev d, u64 *out) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(d, out);
}
#endif
int nvmlDeviceGetComputeMode(dev d, u32 *out) { return number_of(d, "compute_mode", out); }
int nvmlDeviceGetPersistenceMode(dev d, u32 *out) { return number_of(d, "persistence", out); }

/* What only the driver under Windows and WSL knows: 0 is WDDM, which draws a desktop. */
int nvmlDeviceGetDriverModel_v2(dev d, u32 *current, u32 *pending) {
    int code = number_of(d, "driver_model", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetRetiredPagesPendingStatus(dev d, u32 *out) {
    return number_of(d, "retiring", out);
}

int nvmlDeviceGetTotalEccErrors(dev d, int type, int counter, u64 *out) {
    u32 count = 0;
    int code = number_of(d, "ecc", &count);
    (void)type, (void)counter;
    *out = count;
    return code;
}

/* ---- events ---- */

enum { TIMEOUT = 10, EVENT_SETS = 8, CARDS = 32 };
static const u32 ANY_INSTANCE = 0xFFFFFFFF;

struct event_set { int taken, next; u64 types[CARDS]; } event_sets[EVENT_SETS];
struct event { dev device; u64 type, data; u32 gpu_instance, compute_instance; };

int nvmlDeviceGetGpuInstanceId(dev d, u32 *out) {
    return is_mig(d) ? number_of(d, "gi", out) : NOT_SUPPORTED;
}
int nvmlDeviceGetComputeInstanceId(dev d, u32 *out) {
    return is_mig(d) ? number_of(d, "ci", out) : NOT_SUPPORTED;
}

int nvmlEventSetCreate(struct event_set **out) {
    char line[WIDTH] = "";
    int n = 0, code;
    if (!initialised) return UNINITIALIZED;
    find("driver", 0, line);
    code = gate(line, "event_set");
    if (code) return code;
    while (n < EVENT_SETS && event_sets[n].taken) n++;
    if (n == EVENT_SETS) return 20; /* NVML_ERROR_MEMORY */
    *out = memset(&event_sets[n], 0, sizeof event_sets[n]);
    (*out)->taken = 1;
    while (find("event", (*out)->next, line)) (*out)->next++;
    return OK;
}

int nvmlEventSetFree(struct event_set *set) {
    set->taken = 0;
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(dev d, u64 *out) {
    char line[WIDTH];
    int code = line_of(d, "events", line);
    if (code) return code;
    *out = number(line, "events", 0);
    return is_mig(d) ? NOT_SUPPORTED : OK;
}

int nvmlDeviceRegisterEvents(dev d, u64 types, struct event_set *set) {
    char line[WIDTH];
    int code = line_of(d, "register", line);
    if (code) return code;
    /* A driver that has the call but not all of the types it is asked for. */
    if (types & ~number(line, "registers", types)) return INVALID_ARGUMENT;
    set->types[card_of(d)] |= types;
    return OK;
}

static int next_event(struct event_set *set, struct event *out) {
    char line[WIDTH];
    while (find("event", set->next, line)) {
        u64 card = number(line, "card", 0), type = number(line, "type", 8);
        set->next++;
        if (!(set->types[card] & type)) continue;
        *out = (struct event){(dev)(long)(card + 1), type, number(line, "data", 0),
                              (u32)number(line, "gi", ANY_INSTANCE),
                              (u32)number(line, "ci", ANY_INSTANCE)};
        return 1;
    }
    return 0;
}

static int wait_for(struct event_set *set, struct event *out, u32 milliseconds) {
    char line[WIDTH];
    for (u32 waited = 0;; waited += 2) {
        int code;
        line[0] = 0;
        find("driver", 0, line);
        code = gate(line, "wait");
        if (code) return code;
        if (next_event(set, out)) return OK;
        if (waited >= milliseconds) return TIMEOUT;
        usleep(2000);
    }
}

struct event_v1 { dev device; u64 type, data; };

int nvmlEventSetWait(struct event_set *set, struct event_v1 *out, u32 milliseconds) {
    struct event whole;
    int code = wait_for(set, &whole, milliseconds);
    if (!code) *out = (struct event_v1){whole.device, whole.type, whole.data};
    return code;
}

#ifndef OLD
int nvmlEventSetWait_v2(struct event_set *set, struct event *out, u32 milliseconds) {
    return wait_for(set, out, milliseconds);
}

int nvmlDeviceGetRemappedRows(dev d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    *corrected = *uncorrected = *failed = 0;
    int code = number_of(d, "remap_pending", pending);
    return code ? code : number_of(d, "remap_failed", failed);
}

struct field {
    u32 id, scope;
    long long timestamp, latency;
    u32 type, code;
    union { double d; u32 u; u64 wide; } value;
};

int nvmlDeviceGetFieldValues(dev d, int count, struct field *out) {
    for (int n = 0; n < count; n++) {
        out[n].type = 1;
        out[n].code = out[n].id == 230 ? (u32)number_of(d, "recovery", &out[n].value.u) : 3;
    }
    return OK;
}
#endif
