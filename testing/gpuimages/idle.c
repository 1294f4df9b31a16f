/* A container that needs nothing of its image: for measuring, and for containers without GPUs. */
#include <unistd.h>

int main(int count, char **argument) {
    while (count > 1 && argument[1][0] == 's') pause();
    return 0;
}
