/* A substitute for the driver's library: two GPUs.
 *
 * - $HELD_GPUS is a file with the processes that hold them: lines of GPU, process, bytes.
 * - $GPU_ERRORS is a pipe from which events come: lines of GPU, type, XID.
 * - $GPU_FIELDS is a file with the fields that are not 0: lines of GPU, field, value.
 * - $GPU_LOST is a file with the GPUs that are lost, one a line. The others have other indexes then.
 * - While the file $GPU_HANGS exists, the fields of a GPU cannot be read: a call returns only after that.
 * - While the library is in use, the file $GPU_DEVICE is open. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} Process;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, result;
    unsigned long long value;
} Field;

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;

/* A set of events: the types of each GPU, and an event that another set has read. */
typedef struct Set {
    unsigned long long types[2];
    Event waiting;
    struct Set *next;
} Set;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { XID = 0x8, UNAVAILABLE = 0x4000, RECOVERY_ACTION = 0x8000, UNSIGNED_INT = 1 };

static int gpus[2];
static Set *sets;
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static int users, device = -1;

static unsigned index_of(void *device) { return device == &gpus[1]; }

static FILE *open_named(const char *name) {
    const char *path = getenv(name);
    return path ? fopen(path, "r") : NULL;
}

static int use(int change) {
    const char *path = getenv("GPU_DEVICE");
    pthread_mutex_lock(&users_lock);
    users += change;
    if (users && device < 0 && path) device = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
    if (!users && device >= 0) {
        close(device);
        device = -1;
    }
    pthread_mutex_unlock(&users_lock);
    return SUCCESS;
}

static int is_lost(unsigned index) {
    unsigned lost;
    int found = 0;
    FILE *file = open_named("GPU_LOST");
    while (file && fscanf(file, "%u", &lost) == 1) found |= lost == index;
    if (file) fclose(file);
    return found;
}

int nvmlInit_v2(void) { return use(1); }
int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID_ARGUMENT : use(1); }
int nvmlShutdown(void) { return use(-1); }
const char *nvmlErrorString(int code) { return code ? "an error" : "success"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2 - is_lost(0) - is_lost(1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    index += index == 0 && is_lost(0);
    if (index > 1 || is_lost(index)) return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-%u", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 1 + index_of(device);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    const char *hangs = getenv("GPU_HANGS");
    while (hangs && access(hangs, F_OK) == 0) poll(NULL, 0, 10);
    for (int i = 0; i < count; i++) {
        unsigned gpu, field, value;
        FILE *file = open_named("GPU_FIELDS");
        fields[i].type = UNSIGNED_INT;
        fields[i].result = SUCCESS;
        fields[i].value = 0;
        while (file && fscanf(file, "%u %u %u", &gpu, &field, &value) == 3)
            if (gpu == index_of(device) && field == fields[i].field) fields[i].value = value;
        if (file) fclose(file);
    }
    return SUCCESS;
}

int nvmlEventSetCreate(Set **created) {
    *created = calloc(1, sizeof **created);
    (*created)->next = sets;
    sets = *created;
    return SUCCESS;
}

int nvmlEventSetFree(Set *freed) {
    Set **place = &sets;
    while (*place != freed) place = &(*place)->next;
    *place = freed->next;
    free(freed);
    return SUCCESS;
}

/* An event of a GPU is sent to the newest set that is registered for it. */
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, Set *to) {
    if (types & ~(XID | UNAVAILABLE | RECOVERY_ACTION)) return INVALID_ARGUMENT;
    to->types[index_of(device)] |= types;
    return SUCCESS;
}

/* Reads a line from the pipe. Bytes are read one by one, because the pipe may have further lines. */
int nvmlEventSetWait_v2(Set *from, Event *event, unsigned ms) {
    static int pipe = -1;
    static char line[64];
    static unsigned len;
    const char *path = getenv("GPU_ERRORS");
    if (pipe < 0 && path) pipe = open(path, O_RDWR | O_CLOEXEC);
    struct pollfd polled = {.fd = pipe, .events = POLLIN};
    for (;;) {
        if (from->waiting.type) {
            *event = from->waiting;
            from->waiting.type = 0;
            return SUCCESS;
        }
        if (poll(&polled, 1, ms) <= 0 || read(pipe, line + len, 1) != 1) return TIMEOUT;
        if (line[len] != '\n') {
            len = (len + 1) % (sizeof line - 1);
            continue;
        }
        line[len] = 0;
        len = 0;
        unsigned gpu;
        Event found = {0};
        if (sscanf(line, "%u %llu %llu", &gpu, &found.type, &found.data) != 3 || gpu > 1) continue;
        found.device = &gpus[gpu];
        Set *to = sets;
        while (to && !(to->types[gpu] & found.type)) to = to->next;
        if (to) to->waiting = found;
    }
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    unsigned room = processes ? *count : 0, found = 0, gpu;
    Process process = {0};
    FILE *file = open_named("HELD_GPUS");
    while (file && fscanf(file, "%u %u %llu", &gpu, &process.pid, &process.memory) == 3) {
        if (device != &gpus[gpu]) continue;
        if (found < room) processes[found] = process;
        found++;
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
