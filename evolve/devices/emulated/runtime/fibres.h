// Fibres: the stacks that the threads of a block run on. All libraries of a process use the same ones in turn.
#pragma once
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "runtime.h"

namespace evolve {

constexpr size_t STACK_BYTES = 128 << 10;
// Stacks begin at different offsets. At equal ones, all would compete for the same few sets of the CPU's caches.
constexpr size_t OFFSET_BYTES = 320, OFFSETS = 128, MAPPED_BYTES = STACK_BYTES + OFFSETS * OFFSET_BYTES;

struct Fibre {
    Context context;
    char* stack;
    char* top;
    Fibre* next;
};

static EVOLVE_LOCAL Fibre* idle_fibres;  // those of this OS thread: an ending fibre uses its stack until it switches
static Fibre* spare_fibres;              // those of OS threads that have ended
static pthread_mutex_t spare_mutex = PTHREAD_MUTEX_INITIALIZER;

static Fibre* new_fibre() {
    size_t page = size_t(sysconf(_SC_PAGESIZE));
    static unsigned made;
    void* memory = mmap(nullptr, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fputs("the emulator has no memory for the stack of another thread\n", stderr);
        abort();
    }
    mprotect(memory, page, PROT_NONE);
    Fibre* fibre = static_cast<Fibre*>(calloc(1, sizeof(Fibre)));
    fibre->stack = static_cast<char*>(memory);
    fibre->top = fibre->stack + MAPPED_BYTES - __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED) % OFFSETS * OFFSET_BYTES;
    return fibre;
}

static Fibre* pop(Fibre*& fibres) {
    Fibre* fibre = fibres;
    if (fibre) fibres = fibre->next;
    return fibre;
}

static void push(Fibre*& fibres, Fibre* fibre) {
    fibre->next = fibres;
    fibres = fibre;
}

static Fibre* spare_fibre() {
    pthread_mutex_lock(&spare_mutex);
    Fibre* fibre = pop(spare_fibres);
    pthread_mutex_unlock(&spare_mutex);
    return fibre;
}

// Returns a fibre without a context to run.
static Fibre* any_fibre() {
    Fibre* fibre = pop(idle_fibres);
    if (!fibre) fibre = spare_fibre();
    return fibre ? fibre : new_fibre();
}

static void give_back(Fibre* fibre) { push(idle_fibres, fibre); }

// Keeps the fibres of an OS thread that is about to end.
static void spare_idle_fibres() {
    pthread_mutex_lock(&spare_mutex);
    while (Fibre* fibre = pop(idle_fibres)) push(spare_fibres, fibre);
    pthread_mutex_unlock(&spare_mutex);
}

static void free_fibres(Fibre* fibres) {
    while (Fibre* fibre = pop(fibres)) {
        munmap(fibre->stack, MAPPED_BYTES);
        free(fibre);
    }
}

// Takes the fibres that earlier launches of the process have left.
static Fibre* taken_from(Fibre** process) { return __atomic_exchange_n(process, nullptr, __ATOMIC_ACQ_REL); }

// Leaves fibres to the next launch, which often runs code of another library.
static void leave_to(Fibre** process, Fibre*& fibres) {
    free_fibres(__atomic_exchange_n(process, fibres, __ATOMIC_ACQ_REL));  // those of a simultaneous launch
    fibres = nullptr;
}

}  // namespace evolve
