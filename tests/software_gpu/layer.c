/* An OpenCL layer: Intel's OpenCL runtime for CPUs looks like an integrated Intel GPU to OpenVINO's GPU plugin.
 *
 * The loader of OpenCL loads it because OPENCL_LAYERS names it, and gives it the table of all OpenCL functions; it
 * returns a table in which some of them are its own. docs/architecture.md says what they are for:
 *
 *  1. clGetDeviceInfo answers as a GPU does, and hides sub-groups: the CPU runtime forms them otherwise than a GPU.
 *  2. Sources get a line ahead: some kernels take native_powr of a negative number, which only Intel's GPUs define.
 *  3. Built programs are kept in the folder that SOFTWARE_GPU_PROGRAMS names, and read from there the next time.
 *  4. Programs are never released: this runtime frees them under their living kernels, and unloads itself before
 *     OpenVINO at the end of the process, so that nothing else is released from then on either.
 *  5. clWaitForEvents asks until they are over: two threads that wait inside this runtime may wait for each other.
 *
 * SOFTWARE_GPU_MEMORY is the memory of each device in bytes, by default what the runtime says. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int32_t status;
typedef void *handle; /* of a device, context, program, kernel, ... */

/* Places in the table of OpenCL functions (struct _cl_icd_dispatch of cl_icd.h). */
enum {
    GET_DEVICE_INFO = 3, CREATE_CONTEXT = 4, RELEASE_CONTEXT = 7, GET_CONTEXT_INFO = 8, RELEASE_QUEUE = 11,
    RELEASE_MEMORY = 18, CREATE_WITH_SOURCE = 26, CREATE_WITH_BINARY = 27, RELEASE_PROGRAM = 29, BUILD_PROGRAM = 30,
    GET_PROGRAM_INFO = 32, GET_BUILD_INFO = 33, CREATE_KERNEL = 34, CREATE_KERNELS = 35, RELEASE_KERNEL = 37,
    WAIT_FOR_EVENTS = 41, GET_EVENT_INFO = 42, RELEASE_EVENT = 44, FLUSH = 46, FINISH = 47, MOST_FUNCTIONS = 512
};
enum { SUCCESS = 0, EVENTS_FAILED = -14, INVALID_VALUE = -30 };

static void *functions[MOST_FUNCTIONS], *next[MOST_FUNCTIONS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

typedef status (*get_info)(handle, uint32_t, size_t, void *, size_t *);

static status answer(const void *value, size_t bytes, size_t room, void *to, size_t *needed)
{
    if (to && room < bytes) return INVALID_VALUE;
    if (to) memcpy(to, value, bytes);
    if (needed) *needed = bytes;
    return SUCCESS;
}

/* 1. What the device says of itself ------------------------------------------------------------------------------- */

static const struct { uint32_t asked; uint64_t value; size_t bytes; } ANSWERS[] = {
    {0x1000, 4, 8},        /* CL_DEVICE_TYPE: a GPU */
    {0x4250, 50364416, 4}, /* IP version: of a UHD 770, which the plugin's kernel generator knows */
    {0x4251, 0x4680, 4},   /* device id: the same */
    {0x4252, 1, 4},        /* slices */
    {0x4253, 4, 4},        /* sub-slices of a slice */
    {0x4254, 8, 4},        /* execution units of a sub-slice */
    {0x4255, 7, 4},        /* threads of an execution unit */
    {0x4256, 1, 8},        /* features: DP4A */
};
static const char NAME[] = "Software GPU: OpenCL on a CPU";
static const char *const HIDDEN[] = {"cl_intel_subgroups", "cl_intel_required_subgroup_size",
                                     "cl_intel_subgroup_local_block_io"};

static status get_device_info(handle device, uint32_t asked, size_t room, void *to, size_t *needed)
{
    const char *memory = getenv("SOFTWARE_GPU_MEMORY");
    for (size_t i = 0; i < sizeof ANSWERS / sizeof *ANSWERS; i++)
        if (ANSWERS[i].asked == asked) return answer(&ANSWERS[i].value, ANSWERS[i].bytes, room, to, needed);
    if (asked == 0x102B) return answer(NAME, sizeof NAME, room, to, needed);
    if (memory && *memory && (asked == 0x101F || asked == 0x1010)) { /* all of it, and the largest allocation */
        uint64_t bytes = strtoull(memory, NULL, 10);
        return answer(&bytes, sizeof bytes, room, to, needed);
    }
    status got = ((get_info)next[GET_DEVICE_INFO])(device, asked, room, to, needed);
    if (got == SUCCESS && to && asked == 0x1030) /* CL_DEVICE_EXTENSIONS */
        for (size_t i = 0; i < sizeof HIDDEN / sizeof *HIDDEN; i++)
            for (char *at = to; (at = strstr(at, HIDDEN[i]));) memset(at, 'x', strlen(HIDDEN[i]));
    return got;
}

/* 2. and 3. Programs: one created from source stands for the one that was built from it or read from the disk ------ */

typedef struct program {
    struct program *others;
    handle own, built, context; /* built: own, or what was read from the disk; NULL before */
    uint64_t key[2];            /* of the source */
} program;

static program *programs;

static void mix(uint64_t key[2], const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        key[0] = (key[0] ^ (unsigned char)text[i]) * 0x100000001b3u;
        key[1] = (key[1] + (unsigned char)text[i]) * 0x9e3779b97f4a7c15u;
        key[1] ^= key[1] >> 29;
    }
}

static program *find(handle own)
{
    pthread_mutex_lock(&mutex);
    program *found = programs;
    while (found && found->own != own) found = found->others;
    pthread_mutex_unlock(&mutex);
    return found;
}

static handle built(handle own)
{
    program *found = find(own);
    return found && found->built ? found->built : own;
}

static handle create_with_source(handle context, uint32_t count, const char **texts, const size_t *sizes, status *error)
{
    static const char FIRST[] = "#define native_powr(x, y) pow((x), (__typeof__(x))(y))\n#line 1\n";
    const char **all = malloc((count + 1) * sizeof *all);
    size_t *lengths = malloc((count + 1) * sizeof *lengths);
    program *made = calloc(1, sizeof *made);
    all[0] = FIRST;
    lengths[0] = sizeof FIRST - 1;
    for (uint32_t i = 0; i < count; i++) {
        all[i + 1] = texts[i];
        lengths[i + 1] = sizes && sizes[i] ? sizes[i] : strlen(texts[i]);
        mix(made->key, texts[i], lengths[i + 1]);
    }
    made->context = context;
    made->own = ((handle (*)(handle, uint32_t, const char **, const size_t *, status *))next[CREATE_WITH_SOURCE])(
        context, count + 1, all, lengths, error);
    pthread_mutex_lock(&mutex);
    made->others = programs;
    programs = made;
    pthread_mutex_unlock(&mutex);
    free(all);
    free(lengths);
    return made->own;
}

typedef status (*build_function)(handle, uint32_t, const handle *, const char *, void *, void *);

static handle read_program(const char *path, handle context, handle device, const char *options)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    size_t bytes = ftell(file);
    rewind(file);
    unsigned char *binary = malloc(bytes);
    handle made = NULL;
    status error = INVALID_VALUE;
    if (fread(binary, 1, bytes, file) == bytes)
        made = ((handle (*)(handle, uint32_t, const handle *, const size_t *, unsigned char **, status *, status *))
                    next[CREATE_WITH_BINARY])(context, 1, &device, &bytes, &binary, NULL, &error);
    if (made) error = ((build_function)next[BUILD_PROGRAM])(made, 1, &device, options, NULL, NULL);
    free(binary);
    fclose(file);
    return error == SUCCESS ? made : NULL;
}

static void write_program(const char *path, handle made)
{
    size_t bytes = 0;
    char partial[4200];
    get_info ask = (get_info)next[GET_PROGRAM_INFO];
    if (ask(made, 0x1165, sizeof bytes, &bytes, NULL) != SUCCESS || !bytes) return; /* CL_PROGRAM_BINARY_SIZES */
    unsigned char *binary = malloc(bytes);
    snprintf(partial, sizeof partial, "%s.%d.%lx", path, (int)getpid(), (unsigned long)pthread_self());
    FILE *file = fopen(partial, "wb");
    if (file) {
        int whole = ask(made, 0x1166, sizeof binary, &binary, NULL) == SUCCESS && /* CL_PROGRAM_BINARIES */
                    fwrite(binary, 1, bytes, file) == bytes;
        whole = !fclose(file) && whole;
        if (!whole || rename(partial, path)) unlink(partial);
    }
    free(binary);
}

static status build_program(handle own, uint32_t count, const handle *devices, const char *options, void *call, void *data)
{
    build_function build = (build_function)next[BUILD_PROGRAM];
    const char *folder = getenv("SOFTWARE_GPU_PROGRAMS");
    program *of = find(own);
    handle device;
    if (!of || !folder || !*folder) return build(own, count, devices, options, call, data);
    if (count) device = devices[0];
    else ((get_info)next[GET_CONTEXT_INFO])(of->context, 0x1081, sizeof device, &device, NULL); /* CL_CONTEXT_DEVICES */
    char path[4096], version[256] = "";
    uint64_t key[2] = {of->key[0], of->key[1]};
    ((get_info)next[GET_DEVICE_INFO])(device, 0x102D, sizeof version, version, NULL); /* CL_DRIVER_VERSION */
    mix(key, version, strlen(version));
    mix(key, options ? options : "", options ? strlen(options) : 0);
    snprintf(path, sizeof path, "%s/%016llx%016llx", folder, (unsigned long long)key[0], (unsigned long long)key[1]);
    of->built = read_program(path, of->context, device, options);
    if (!of->built) {
        status error = build(own, count, devices, options, NULL, NULL);
        if (error != SUCCESS) return error;
        of->built = own;
        write_program(path, own);
    }
    if (call) ((void (*)(handle, void *))call)(own, data);
    return SUCCESS;
}

static status get_program_info(handle own, uint32_t asked, size_t room, void *to, size_t *needed)
{
    return ((get_info)next[GET_PROGRAM_INFO])(built(own), asked, room, to, needed);
}

static status get_build_info(handle own, handle device, uint32_t asked, size_t room, void *to, size_t *needed)
{
    return ((status (*)(handle, handle, uint32_t, size_t, void *, size_t *))next[GET_BUILD_INFO])(
        built(own), device, asked, room, to, needed);
}

static handle create_kernel(handle own, const char *name, status *error)
{
    return ((handle (*)(handle, const char *, status *))next[CREATE_KERNEL])(built(own), name, error);
}

static status create_kernels(handle own, uint32_t room, handle *kernels, uint32_t *count)
{
    return ((status (*)(handle, uint32_t, handle *, uint32_t *))next[CREATE_KERNELS])(built(own), room, kernels, count);
}

/* 4. Releases ------------------------------------------------------------------------------------------------------ */

static volatile int is_ending;

static void end(void) { is_ending = 1; }

static status keep(handle any)
{
    (void)any;
    return SUCCESS;
}

#define UNTIL_THE_END(name, place) \
    static status name(handle any) { return is_ending ? SUCCESS : ((status (*)(handle))next[place])(any); }
UNTIL_THE_END(release_context, RELEASE_CONTEXT)
UNTIL_THE_END(release_queue, RELEASE_QUEUE)
UNTIL_THE_END(release_memory, RELEASE_MEMORY)
UNTIL_THE_END(release_kernel, RELEASE_KERNEL)
UNTIL_THE_END(release_event, RELEASE_EVENT)
UNTIL_THE_END(flush, FLUSH)
UNTIL_THE_END(finish, FINISH)

static handle create_context(const void *properties, uint32_t count, const handle *devices, void *call, void *data,
                             status *error)
{
    static int is_known;
    handle made = ((handle (*)(const void *, uint32_t, const handle *, void *, void *, status *))next[CREATE_CONTEXT])(
        properties, count, devices, call, data, error);
    if (!__sync_lock_test_and_set(&is_known, 1)) atexit(end); /* late, so that it is called before the runtime's own */
    return made;
}

/* 5. Waiting ------------------------------------------------------------------------------------------------------- */

static status wait_for_events(uint32_t count, const handle *events)
{
    get_info ask = (get_info)next[GET_EVENT_INFO];
    int32_t state = 0, worst = 0;
    for (uint32_t i = 0; i < count; i++) {
        handle queue = NULL;
        if (ask(events[i], 0x11D0, sizeof queue, &queue, NULL) == SUCCESS && queue) flush(queue); /* of the event */
    }
    for (uint32_t i = 0; i < count; i++) { /* CL_EVENT_COMMAND_EXECUTION_STATUS: 0 when over, negative if it failed */
        while (ask(events[i], 0x11D3, sizeof state, &state, NULL) == SUCCESS && state > 0) usleep(20);
        if (state < worst) worst = state;
    }
    return worst < 0 ? EVENTS_FAILED : SUCCESS;
}

/* What the loader asks for ----------------------------------------------------------------------------------------- */

status clGetLayerInfo(uint32_t asked, size_t room, void *to, size_t *needed)
{
    static const uint32_t VERSION = 100;
    if (asked == 0x4240) return answer(&VERSION, sizeof VERSION, room, to, needed);
    if (asked == 0x4241) return answer(NAME, sizeof NAME, room, to, needed);
    return INVALID_VALUE;
}

status clInitLayer(uint32_t count, void **given, uint32_t *num, void ***table)
{
    if (!given || !num || !table || count <= FINISH) return INVALID_VALUE;
    if (count > MOST_FUNCTIONS) count = MOST_FUNCTIONS;
    memcpy(next, given, count * sizeof *given);
    memcpy(functions, given, count * sizeof *given);
    functions[GET_DEVICE_INFO] = (void *)get_device_info;
    functions[CREATE_CONTEXT] = (void *)create_context;
    functions[CREATE_WITH_SOURCE] = (void *)create_with_source;
    functions[BUILD_PROGRAM] = (void *)build_program;
    functions[GET_PROGRAM_INFO] = (void *)get_program_info;
    functions[GET_BUILD_INFO] = (void *)get_build_info;
    functions[CREATE_KERNEL] = (void *)create_kernel;
    functions[CREATE_KERNELS] = (void *)create_kernels;
    functions[RELEASE_PROGRAM] = (void *)keep;
    functions[RELEASE_CONTEXT] = (void *)release_context;
    functions[RELEASE_QUEUE] = (void *)release_queue;
    functions[RELEASE_MEMORY] = (void *)release_memory;
    functions[RELEASE_KERNEL] = (void *)release_kernel;
    functions[WAIT_FOR_EVENTS] = (void *)wait_for_events;
    functions[RELEASE_EVENT] = (void *)release_event;
    functions[FLUSH] = (void *)flush;
    functions[FINISH] = (void *)finish;
    *num = count;
    *table = functions;
    return SUCCESS;
}

/* The newer form of the same, which the loader of the intel-opencl-rt package asks for. */
status clInitLayerWithProperties(uint32_t count, void **given, uint32_t *num, void ***table, const void *properties)
{
    (void)properties;
    return clInitLayer(count, given, num, table);
}

status clDeinitLayer(void) { return SUCCESS; }
