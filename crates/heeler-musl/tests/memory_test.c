// Compares the functions of memory.c with byte loops, for all sizes up to 600 bytes and all overlaps.

#define memmove tested_memmove
#define memcpy tested_memcpy
#define memcmp tested_memcmp
#define bcmp tested_bcmp
#include "../src/memory.c"
#undef memmove
#undef memcpy
#undef memcmp
#undef bcmp

#include <stdio.h>

enum { SIZE_MAX_TESTED = 600, SHIFT_MAX = 200, ROOM = SIZE_MAX_TESTED + 2 * SHIFT_MAX + 64 };

static unsigned char tested[ROOM], expected[ROOM], before[ROOM];

static void fill(void) {
    for (int i = 0; i < ROOM; i++) {
        tested[i] = before[i] = (unsigned char)(i * 31 + i / 7);
    }
}

static int is_copied(int to, int from, int size) {
    fill();
    void *returned = tested_memmove(tested + to, tested + from, (size_t)size);
    if (returned != tested + to) {
        return 0;
    }
    for (int i = 0; i < ROOM; i++) {
        expected[i] = i >= to && i < to + size ? before[from + i - to] : before[i];
        if (tested[i] != expected[i]) {
            return 0;
        }
    }
    return 1;
}

static int sign(int number) { return (number > 0) - (number < 0); }

static int is_compared(int size, int at) {
    fill();
    for (int i = 0; i < size; i++) {
        expected[i] = tested[i];
    }
    if (tested_memcmp(tested, expected, (size_t)size) || tested_bcmp(tested, expected, (size_t)size)) {
        return 0;
    }
    if (at >= size) {
        return 1;
    }
    // Later bytes differ in the other direction, so only the first difference may count.
    tested[at] = 200;
    expected[at] = 100;
    for (int i = at + 1; i < size; i++) {
        tested[i] = 0;
        expected[i] = 255;
    }
    return sign(tested_memcmp(tested, expected, (size_t)size)) == 1
        && sign(tested_memcmp(expected, tested, (size_t)size)) == -1
        && tested_bcmp(tested, expected, (size_t)size) != 0;
}

int main(void) {
    for (int size = 0; size <= SIZE_MAX_TESTED; size++) {
        for (int shift = -SHIFT_MAX; shift <= SHIFT_MAX; shift++) {
            if (!is_copied(SHIFT_MAX + shift, SHIFT_MAX, size)) {
                printf("a copy of %d bytes by %d places is wrong\n", size, shift);
                return 1;
            }
        }
        for (int at = 0; at <= size; at++) {
            if (!is_compared(size, at)) {
                printf("a comparison of %d bytes with a difference at %d is wrong\n", size, at);
                return 1;
            }
        }
    }
    puts("all sizes are right");
    return 0;
}
