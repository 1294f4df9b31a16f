/* A workload's program: what it sees of the GPUs. It is linked with the driver's libraries, so that it does not even
   start where the loader cannot find them.

   usage: gpucheck [--stay] [DEVICE...]

   Prints `driver N`, `management N`, `library NAME` for each in GPUCHECK_OPEN that dlopen finds, `env NAME=VALUE` for
   each NVIDIA_* variable and `device PATH c MAJOR:MINOR` (or `device PATH missing`) on standard output and in the
   kubelet's termination message; with --stay it then waits for a signal. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int nvmlInit_v2(void);

extern char **environ;
static int message = -1;

static void say(const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write(1, text, length);
    if (message >= 0) write(message, text, length);
}

static void devices(const char *path) {
    struct stat found;
    int file = open(path, O_RDWR);
    if (file < 0 || fstat(file, &found))
        say("device %s missing\n", path);
    else
        say("device %s %s %u:%u\n", path, S_ISCHR(found.st_mode) ? "c" : "-", major(found.st_rdev), minor(found.st_rdev));
    if (file >= 0) close(file);
}

int main(int count, char **argument) {
    int version = 0, stay = 0;
    message = open("/dev/termination-log", O_WRONLY);
    if (cuInit(0) || cuDriverGetVersion(&version)) return 1;
    say("driver %d\n", version);
    say("management %d\n", nvmlInit_v2());
    char *wanted = getenv("GPUCHECK_OPEN");
    for (char *name = wanted ? strtok(strdup(wanted), ",") : NULL; name; name = strtok(NULL, ","))
        say(dlopen(name, RTLD_NOW) ? "library %s\n" : "library %s missing\n", name);
    for (char **each = environ; *each; each++)
        if (!strncmp(*each, "NVIDIA_", 7)) say("env %s\n", *each);
    for (int i = 1; i < count; i++)
        if (!strcmp(argument[i], "--stay"))
            stay = 1;
        else
            devices(argument[i]);
    while (stay) pause();
    return 0;
}
