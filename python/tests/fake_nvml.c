/* A library in the place of NVML, for tests: it tells what the file of the variable FAKE_NVML says, "COUNT LOST":
   how many devices there are, and the number of one that is lost. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, UNKNOWN = 999, GPU_IS_LOST = 15 };

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;

static int state(int *count, int *lost) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return UNKNOWN;
    int read = fscanf(file, "%d %d", count, lost);
    fclose(file);
    return read == 2 ? SUCCESS : UNKNOWN;
}

/* A handle is the number of its device and one. */
static int ask(void *device) {
    int count, lost, result = state(&count, &lost);
    return result ? result : (long)device - 1 == lost ? GPU_IS_LOST : SUCCESS;
}

int nvmlInit_v2(void) { int count, lost; return state(&count, &lost); }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "550.54.15"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *found) {
    int count, lost, result = state(&count, &lost);
    *found = result ? 0 : count;
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    int count, lost, result = state(&count, &lost);
    *device = (void *)(long)(index + 1);
    return result ? result : (int)index < count ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    snprintf(text, length, "Fake %ld", (long)device - 1);
    return ask(device);
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    snprintf(text, length, "GPU-fake-%ld", (long)device - 1);
    return ask(device);
}

int nvmlDeviceGetMemoryInfo_v2(void *device, Memory *memory) {
    memory->total = 80ULL << 30;
    memory->used = memory->reserved = 10ULL << 30;
    memory->free = 70ULL << 30;
    return ask(device);
}

int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
    rates->gpu = 25;
    rates->memory = 5;
    return ask(device);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    (void)sensor;
    *degrees = 41;
    return ask(device);
}
