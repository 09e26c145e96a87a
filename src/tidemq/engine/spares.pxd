"""Blocks of messages that a thread let go of, kept for its next ones: half a thousand of each size, up to 512 bytes.
The C library's own cache keeps seven. Only `message` may use it: each module that does has its own.
Sanitizers see every block, so there nothing is kept."""

cdef extern from * nogil:
    """
    #include <cstddef>
    #include <cstdint>
    #include <cstdlib>
    #if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    static inline std::size_t tidemq_spare_bytes(std::size_t size) { return size; }
    static inline void* tidemq_take_spare(std::size_t) { return nullptr; }
    static inline void tidemq_let_go(void* block, std::size_t) { std::free(block); }
    #else
    struct TidemqSpares {
        enum : std::size_t { STEP = 16, SIZES = 32, KEPT = 512 };
        // as glibc's malloc has them: 8, 24, 40 and so on, without waste
        static std::size_t place_of(std::size_t size) { return (size + 7) / STEP; }
        void* first[SIZES] = {};
        std::uint16_t count[SIZES] = {};
        ~TidemqSpares() {
            for (void* block : first)
                while (block != nullptr) {
                    void* next = *static_cast<void**>(block);
                    std::free(block);
                    block = next;
                }
        }
    };
    static thread_local TidemqSpares tidemq_spares;

    static inline std::size_t tidemq_spare_bytes(std::size_t size) {
        return TidemqSpares::place_of(size) * TidemqSpares::STEP + 8;
    }

    static inline void* tidemq_take_spare(std::size_t size) {
        std::size_t place = TidemqSpares::place_of(size);
        if (place >= TidemqSpares::SIZES)
            return nullptr;
        TidemqSpares& spares = tidemq_spares;
        void* block = spares.first[place];
        if (block != nullptr) {
            spares.first[place] = *static_cast<void**>(block);
            spares.count[place] -= 1;
        }
        return block;
    }

    static inline void tidemq_let_go(void* block, std::size_t size) {
        std::size_t place = TidemqSpares::place_of(size);
        TidemqSpares& spares = tidemq_spares;
        if (place >= TidemqSpares::SIZES || spares.count[place] >= TidemqSpares::KEPT) {
            std::free(block);
            return;
        }
        *static_cast<void**>(block) = spares.first[place];
        spares.first[place] = block;
        spares.count[place] += 1;
    }
    #endif
    """
    void* take_spare "tidemq_take_spare" (size_t size)         # NULL: there is none
    size_t spare_bytes "tidemq_spare_bytes" (size_t size)      # what to take from the C library then
    void let_go "tidemq_let_go" (void* block, size_t size)
