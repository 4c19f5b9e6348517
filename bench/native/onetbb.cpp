// oneTBB behind three C functions: an arena of its own, items enqueued to it.
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

namespace {
struct pool {
    tbb::global_control limit;
    tbb::task_arena arena;
    explicit pool(unsigned threads)
        // The limit counts the main thread too; no slot of the arena is kept for outside threads.
        : limit(tbb::global_control::max_allowed_parallelism, threads + 1), arena(static_cast<int>(threads), 0) {
        arena.initialize();
    }
};
}  // namespace

extern "C" void *bench_onetbb_new(unsigned threads) {
    try {
        return new pool(threads);
    } catch (...) {
        return nullptr;
    }
}

extern "C" int bench_onetbb_submit(void *self, void (*run)(void *), void *item) {
    try {
        static_cast<pool *>(self)->arena.enqueue([run, item] { run(item); });
        return 0;
    } catch (...) {
        return 1;
    }
}
