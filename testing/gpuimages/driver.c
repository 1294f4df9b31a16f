/* The driver's libraries as a program needs them to start: nothing but their entry points, and no libc, so that one
   file serves every loader, as the driver's own do not. */

int cuInit(unsigned flags) { return (int)(flags & 0); }

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

int nvmlInit_v2(void) { return 0; }
