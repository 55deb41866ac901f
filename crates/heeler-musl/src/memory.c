// `memmove`, `memcpy`, `memcmp` and `bcmp` for programs that are linked with musl.
//
// The functions of musl for x86-64 copy by `rep movsq`, which takes about 30 cycles to start, and
// compare byte by byte. Most copies of this program are shorter than 64 bytes. These functions copy
// short texts by a few loads and stores that may overlap. They use only what every processor of
// the target has.

#include <stddef.h>
#include <stdint.h>

typedef uint8_t block __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t word __attribute__((aligned(1), may_alias));
typedef uint32_t half __attribute__((aligned(1), may_alias));
typedef uint16_t pair __attribute__((aligned(1), may_alias));

#define LOAD(type, from) (*(const type *)(from))
#define STORE(type, to, value) (*(type *)(to) = (value))

// Copies the first and the last unit of a text of `size` bytes. Both are loaded before one is
// stored, so the texts may overlap, and so may the units.
#define COPY_ENDS(type, unit)                                                                      \
    do {                                                                                           \
        type first = LOAD(type, from), last = LOAD(type, from + size - (unit));                    \
        STORE(type, to, first);                                                                    \
        STORE(type, to + size - (unit), last);                                                     \
    } while (0)

static inline void copy_short(char *to, const char *from, size_t size) {
    if (size >= 8) {
        COPY_ENDS(word, 8);
    } else if (size >= 4) {
        COPY_ENDS(half, 4);
    } else if (size >= 2) {
        COPY_ENDS(pair, 2);
    } else if (size == 1) {
        *to = *from;
    }
}

// Copies 64 bytes, all of which are loaded before one is stored.
static inline void copy_64(char *to, const char *from) {
    block a = LOAD(block, from), b = LOAD(block, from + 16);
    block c = LOAD(block, from + 32), d = LOAD(block, from + 48);
    STORE(block, to, a);
    STORE(block, to + 16, b);
    STORE(block, to + 32, c);
    STORE(block, to + 48, d);
}

// For more than 64 bytes, where the target begins before the source or after its end. The last 64
// bytes are loaded first, because a store may overwrite them.
static inline void copy_forward(char *to, const char *from, size_t size) {
    const char *tail = from + size - 64;
    block a = LOAD(block, tail), b = LOAD(block, tail + 16);
    block c = LOAD(block, tail + 32), d = LOAD(block, tail + 48);
    for (size_t at = 0; at + 64 < size; at += 64) {
        copy_64(to + at, from + at);
    }
    char *end = to + size - 64;
    STORE(block, end, a);
    STORE(block, end + 16, b);
    STORE(block, end + 32, c);
    STORE(block, end + 48, d);
}

// For more than 64 bytes, where the target begins inside the source.
static inline void copy_backward(char *to, const char *from, size_t size) {
    block a = LOAD(block, from), b = LOAD(block, from + 16);
    block c = LOAD(block, from + 32), d = LOAD(block, from + 48);
    for (size_t left = size; left > 64; left -= 64) {
        copy_64(to + left - 64, from + left - 64);
    }
    STORE(block, to, a);
    STORE(block, to + 16, b);
    STORE(block, to + 32, c);
    STORE(block, to + 48, d);
}

static inline void copy(char *to, const char *from, size_t size) {
    if (size <= 16) {
        copy_short(to, from, size);
    } else if (size <= 32) {
        COPY_ENDS(block, 16);
    } else if (size <= 64) {
        block a = LOAD(block, from), b = LOAD(block, from + 16);
        block c = LOAD(block, from + size - 32), d = LOAD(block, from + size - 16);
        STORE(block, to, a);
        STORE(block, to + 16, b);
        STORE(block, to + size - 32, c);
        STORE(block, to + size - 16, d);
    } else if ((uintptr_t)to - (uintptr_t)from >= size) {
        copy_forward(to, from, size);
    } else {
        copy_backward(to, from, size);
    }
}

void *memmove(void *target, const void *source, size_t size) {
    copy(target, source, size);
    return target;
}

void *memcpy(void *restrict target, const void *restrict source, size_t size) {
    copy(target, source, size);
    return target;
}

// The first byte in memory decides, so it must be the highest of a number.
static inline uint64_t in_order(uint64_t bytes) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(bytes);
#else
    return bytes;
#endif
}

static inline int compare(const unsigned char *a, const unsigned char *b, size_t size) {
    for (; size >= 8; size -= 8, a += 8, b += 8) {
        uint64_t in_a = LOAD(word, a), in_b = LOAD(word, b);
        if (in_a != in_b) {
            return in_order(in_a) < in_order(in_b) ? -1 : 1;
        }
    }
    for (; size > 0; size--, a++, b++) {
        if (*a != *b) {
            return *a < *b ? -1 : 1;
        }
    }
    return 0;
}

int memcmp(const void *left, const void *right, size_t size) {
    return compare(left, right, size);
}

int bcmp(const void *left, const void *right, size_t size) {
    return compare(left, right, size);
}
