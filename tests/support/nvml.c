/* A substitute for the driver's library: two GPUs.
 *
 * - $HELD_GPUS is a file with the processes that hold them: lines of GPU, process, bytes.
 * - $GPU_ERRORS is a pipe from which errors come: lines of GPU, XID. An XID of 0 says that the recovery action has changed.
 * - $GPU_FIELDS is a file with the fields that are not 0: lines of GPU, field, value. */
#include <fcntl.h>
#include <poll.h>
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

enum { SUCCESS = 0, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { XID = 0x8, RECOVERY_ACTION = 0x8000, UNSIGNED_INT = 1 };

static int gpus[2];
static unsigned long long registered[2];
static int set;

static unsigned index_of(void *device) { return device == &gpus[1]; }

static FILE *open_named(const char *name) {
    const char *path = getenv(name);
    return path ? fopen(path, "r") : NULL;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return flags = SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "an error" : "success"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
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

int nvmlEventSetCreate(void **created) {
    *created = &set;
    return SUCCESS;
}

int nvmlEventSetFree(void *freed) { return freed != &set; }

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *to) {
    registered[index_of(device)] = types;
    return to != &set;
}

/* Reads a line from the pipe. Bytes are read one by one, because the pipe may have further lines. */
int nvmlEventSetWait_v2(void *from, Event *event, unsigned ms) {
    static int pipe = -1;
    static char line[64];
    static unsigned len;
    const char *path = getenv("GPU_ERRORS");
    if (pipe < 0 && path) pipe = open(path, O_RDWR | O_CLOEXEC);
    struct pollfd polled = {.fd = pipe, .events = POLLIN};
    while (from == &set && poll(&polled, 1, ms) > 0 && read(pipe, line + len, 1) == 1) {
        unsigned gpu;
        if (line[len] != '\n') {
            len = (len + 1) % (sizeof line - 1);
            continue;
        }
        line[len] = 0;
        len = 0;
        if (sscanf(line, "%u %llu", &gpu, &event->data) != 2 || gpu > 1) continue;
        event->device = &gpus[gpu];
        event->type = event->data ? XID : RECOVERY_ACTION;
        if (registered[gpu] & event->type) return SUCCESS;
    }
    return TIMEOUT;
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
