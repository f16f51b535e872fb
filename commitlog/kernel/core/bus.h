/* A guard against SIGBUS, which comes if the disk fails under a read or write of mapped memory.  No Python in here.

   A guarded call ends at the instruction that got the signal, and returns 0.  Any other SIGBUS, of this or another
   thread, goes to the handler that was there before ours. */
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

/* Where this thread goes on after a SIGBUS; NULL while it runs no guarded call.  With the model initial-exec, a signal
   handler can read it without an allocation. */
static __thread sigjmp_buf *hs_bus_exit __attribute__((tls_model("initial-exec")));
static struct sigaction hs_bus_before;
static volatile sig_atomic_t hs_bus_passed;

/* This SIGBUS is not ours.  Puts back the handler that was there before: the instruction faults again, and that handler
   gets the signal.  If the signal comes to us a second time, it ends the process. */
static inline void hs_bus_pass(siginfo_t *info) {
    struct sigaction fatal = {0};
    fatal.sa_handler = SIG_DFL;
    sigaction(SIGBUS, hs_bus_passed ? &fatal : &hs_bus_before, NULL);
    hs_bus_passed = 1;
    if (!info || info->si_code <= 0) raise(SIGBUS); /* a process sent it: no instruction will fault again */
}

static void hs_bus_handler(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (hs_bus_exit && info && info->si_code > 0) siglongjmp(*hs_bus_exit, 1);
    hs_bus_pass(info);
}

/* Installs our handler unless it is installed.  Call it from one thread at a time.  Returns 0 on failure. */
static inline int hs_bus_take(void) {
    struct sigaction now, ours = {0};
    if (sigaction(SIGBUS, NULL, &now)) return 0;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == hs_bus_handler) return 1;
    ours.sa_sigaction = hs_bus_handler;
    /* The handler does not block SIGBUS, so the jump out of it has no signal mask to restore. */
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    hs_bus_before = now;
    hs_bus_passed = 0;
    return !sigaction(SIGBUS, &ours, NULL);
}

/* Calls work(what); returns 0 if a SIGBUS ended it.  Memory then has the changes that work() made until the signal.
   Variables that the caller reads afterwards must be volatile.  Guarded calls must not be nested. */
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
