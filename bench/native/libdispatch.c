/* libdispatch's global concurrent queue behind one C function. Its number of threads follows the CPUs of the process. */
#include <dispatch/dispatch.h>

void bench_libdispatch_submit(void (*run)(void *), void *item) {
    dispatch_async_f(dispatch_get_global_queue(DISPATCH_QUEUE_PRIORITY_DEFAULT, 0), item, run);
}
