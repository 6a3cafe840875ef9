// Switches between stacks: in assembly on x86-64 and aarch64, with ucontext elsewhere.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(__ILP32__)
#define EVOLVE_SWITCH_BY_HAND 1
asm(R"(
    .text
    .p2align 4
evolve_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
enum { SAVED_WORDS = 6, RETURN_WORD = 6, FRAME_WORDS = 8 };
#elif defined(__aarch64__)
#define EVOLVE_SWITCH_BY_HAND 1
asm(R"(
    .text
    .p2align 4
evolve_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
enum { RETURN_WORD = 11, FRAME_WORDS = 20 };
#endif

#ifdef EVOLVE_SWITCH_BY_HAND

extern "C" void evolve_switch(void** from, void* to) asm("evolve_switch");

struct Context {
    void* stack_pointer;
};

inline void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
    uintptr_t top = reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t(15);
    uintptr_t* frame = reinterpret_cast<uintptr_t*>(top) - FRAME_WORDS;
    for (int word = 0; word < FRAME_WORDS; ++word) frame[word] = 0;
    frame[RETURN_WORD] = reinterpret_cast<uintptr_t>(entry);
    context.stack_pointer = frame;
}

inline void switch_to(Context& from, Context& to) { evolve_switch(&from.stack_pointer, to.stack_pointer); }

#else
#include <ucontext.h>

struct Context {
    ucontext_t state;
};

inline void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = bytes;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}

inline void switch_to(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

#endif
