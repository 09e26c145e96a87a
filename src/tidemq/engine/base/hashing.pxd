"""The hash of tables whose keys strangers choose: SipHash-1-3 (Aumasson and Bernstein), with a key from the system
that each table has for itself, so who chooses the keys cannot choose collisions."""
from libc.stdint cimport uint64_t
from libcpp.string cimport string

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <string>
    #include <string_view>
    #include <sys/random.h>
    #ifndef TIDEMQ_SEEDED_HASH
    #define TIDEMQ_SEEDED_HASH
    struct SeededHash {
        uint64_t key[2];

        SeededHash() { if (getrandom(key, sizeof key, 0) != sizeof key) abort(); }

        static inline void mix(uint64_t v[4]) {
            v[0] += v[1]; v[1] = (v[1] << 13 | v[1] >> 51) ^ v[0]; v[0] = v[0] << 32 | v[0] >> 32;
            v[2] += v[3]; v[3] = (v[3] << 16 | v[3] >> 48) ^ v[2];
            v[0] += v[3]; v[3] = (v[3] << 21 | v[3] >> 43) ^ v[0];
            v[2] += v[1]; v[1] = (v[1] << 17 | v[1] >> 47) ^ v[2]; v[2] = v[2] << 32 | v[2] >> 32;
        }

        uint64_t of(const void* data, size_t size) const {
            uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
                             key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
            const uint8_t* at = static_cast<const uint8_t*>(data);
            uint64_t word = 0;
            for (size_t left = size; left >= 8; left -= 8, at += 8) {
                memcpy(&word, at, 8);
                v[3] ^= word; mix(v); v[0] ^= word;
            }
            word = 0;
            memcpy(&word, at, size & 7);
            word |= static_cast<uint64_t>(size) << 56;
            v[3] ^= word; mix(v); v[0] ^= word;
            v[2] ^= 0xff; mix(v); mix(v); mix(v);
            return v[0] ^ v[1] ^ v[2] ^ v[3];
        }

        // not noexcept: the table then keeps each entry's hash, and compares no key of another hash
        size_t operator()(const std::string& text) const { return of(text.data(), text.size()); }
        size_t operator()(std::string_view text) const { return of(text.data(), text.size()); }
        size_t operator()(uint64_t number) const { return of(&number, sizeof number); }
    };
    #endif
    """
    cppclass SeededHash:
        SeededHash()
        uint64_t of(const void* data, size_t size)
