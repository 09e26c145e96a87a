"""Memory that runs out ends the process, with one line that says so. A broker that cannot keep a message has no state
to go on from; and what C++'s containers throw could be caught nowhere in functions that no exception may leave."""

cdef extern from * nogil:
    """
    #include <new>
    #include <stdlib.h>
    #include <unistd.h>
    #ifndef TIDEMQ_EXHAUSTION
    #define TIDEMQ_EXHAUSTION
    [[noreturn]] static void tidemq_out_of_memory(void) {
        static const char line[] =
            "tidemq: out of memory: the process ends, for what it holds would not be whole (see memory_bytes_max)\\n";
        ssize_t written = write(2, line, sizeof line - 1);
        (void)written;
        abort();
    }
    static inline void tidemq_end_when_exhausted(void) { std::set_new_handler(tidemq_out_of_memory); }
    #endif
    """
    void out_of_memory "tidemq_out_of_memory" ()               # does not return
    # From now on also where a container of C++ finds no memory, in the whole process.
    void end_when_exhausted "tidemq_end_when_exhausted" ()
