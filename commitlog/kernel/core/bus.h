/* A guard against SIGBUS: what a read or write of mapped memory becomes when the disk fails under it.  No Python.

   A guarded call ends where the signal finds it, and says so; any other SIGBUS, of this or another thread, goes to
   whoever handled it before. */
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

/* Where this thread goes on after a SIGBUS; NULL while it runs nothing guarded.  Initial-exec: nothing is allocated
   when a signal handler reads it. */
static __thread sigjmp_buf *hs_bus_exit __attribute__((tls_model("initial-exec")));
static struct sigaction hs_bus_before;
static volatile sig_atomic_t hs_bus_passed;

/* Not ours: whoever handled it before handles it now, as if we had never been there, for the instruction faults
   again; when it comes back to us even so, the process ends by it. */
static inline void hs_bus_pass(siginfo_t *info) {
    struct sigaction fatal = {0};
    fatal.sa_handler = SIG_DFL;
    sigaction(SIGBUS, hs_bus_passed ? &fatal : &hs_bus_before, NULL);
    hs_bus_passed = 1;
    if (!info || info->si_code <= 0) raise(SIGBUS); /* sent by a process, no instruction faults again */
}

static void hs_bus_handler(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (hs_bus_exit && info && info->si_code > 0) siglongjmp(*hs_bus_exit, 1);
    hs_bus_pass(info);
}

/* Takes SIGBUS unless it is ours already.  One thread at a time; 0 if it cannot be taken. */
static inline int hs_bus_take(void) {
    struct sigaction now, ours = {0};
    if (sigaction(SIGBUS, NULL, &now)) return 0;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == hs_bus_handler) return 1;
    ours.sa_sigaction = hs_bus_handler;
    /* Not blocked within: the jump out of it need not put back what was blocked. */
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    hs_bus_before = now;
    hs_bus_passed = 0;
    return !sigaction(SIGBUS, &ours, NULL);
}

/* Calls work(what); 0 if a SIGBUS ended it.  What it changes in memory is then as far as it came: what is looked at
   afterwards has to be volatile.  Calls are not nested. */
static __attribute__((noinline)) int hs_bus_guarded(void (*work)(void *), void *what) {
    sigjmp_buf out;
    if (sigsetjmp(out, 0)) {
        hs_bus_exit = NULL;
        return 0;
    }
    hs_bus_exit = &out;
    work(what);
    hs_bus_exit = NULL;
    return 1;
}
