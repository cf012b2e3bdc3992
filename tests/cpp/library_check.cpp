// Checks the promises of the CPU library for every call of any op, with one program as an example.
// The caller's floating-point environment has no effect and is restored. Calls from several threads
// and nested tasks share one pool. A thread begins with the same tasks from call to call. A call on
// few elements wakes no thread. Kept memory has one owner at a time. The pool survives a fork. An
// instruction set is accepted or rejected by name.
//
//   library_check
#include <bridge/bridge.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kept_memory.h"
#include "cpu/task_ranges.h"
#include "program/program.h"
#include "random_arrays.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace bridge::random;

// The program y = keep * 4/3 * x, which drops a quarter of x, with the column sums of y.
std::vector<int32_t> dropout() {
  using namespace bridge::interpreter;
  const Header header{kVersion, 2, 2, 5, 1, 3, 2, 3, 1, 0, 1};
  const double constants[] = {0x1p30, 4.0 / 3.0, 0.0};
  constexpr auto kFull = static_cast<int32_t>(Role::full), kRow = static_cast<int32_t>(Role::row),
                 kInteger = static_cast<int32_t>(Role::integer);
  const int32_t between[] = {0, 0, kFull, kInteger, kFull, kRow, 1, 6, 0};  // the integer 0 first
  const Instruction code[] = {{kLoadLabel, 1, 1, 0, 0, 0}, {kLoad, 3, 0, 0, 0, 0},
                              {kKeep, 4, 1, 0, -1, 0},     {kMultiply, 3, 3, 1, 0, 0},
                              {kWhere, 3, 4, 3, 2, 0},     {kStore, 0, 0, 3, 0, 0},
                              {kAddColumns, 0, 1, 3, 0, 0}};
  std::vector<int32_t> words;
  const auto add = [&words](const auto& part) {
    const size_t at = words.size(), bytes = sizeof part;
    words.resize(at + bytes / sizeof(int32_t));
    memcpy(words.data() + at, &part, bytes);
  };
  add(header), add(constants), add(between), add(code);
  return words;
}

// A call of the dropout program on dense float arrays of denormal numbers.
struct Plain {
  std::vector<float> input, output, row;
  int64_t seed = 7;
  std::vector<int32_t> words = dropout();
  bridge_program_array operand[2]{}, result[2]{};
  bridge_program call{};
  Plain(int64_t rows, int64_t cols) : input(rows * cols), output(rows * cols), row(cols) {
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % 31) * 1e-39f;
    operand[0] = {input.data(), BRIDGE_FLOAT32, 0, {cols}, 1};
    operand[1] = {&seed, BRIDGE_INT64, 0, {0}, 0};
    result[0] = {output.data(), BRIDGE_FLOAT32, 0, {cols}, 1};
    result[1] = {row.data(), BRIDGE_FLOAT32, 0, {0}, 1};
    call.code = words.data(), call.words = static_cast<int64_t>(words.size());
    call.dims = 1, call.size[0] = rows, call.cols = call.index_cols = cols;
    call.operands = call.results = 2, call.operand = operand, call.result = result;
  }
  bridge_status run(const bridge_executor* executor = nullptr) {
    return bridge_program_cpu(&call, executor);
  }
};

void check_float_environment() {
#if defined(__x86_64__)
  for (int64_t rows : {10, 3000}) {
    Plain plain(rows, 100);
    const bridge_executor pool = bridge_pool(3);
    check(plain.run(&pool) == BRIDGE_OK, "a plain call");
    const std::vector<float> output = plain.output, row = plain.row;
    const unsigned saved = _mm_getcsr(), flushing = 0x9fe2;
    _mm_setcsr(flushing);
    const bridge_status status = plain.run(&pool);
    const unsigned left = _mm_getcsr();
    _mm_setcsr(saved);
    check(status == BRIDGE_OK && left == flushing, "the caller's MXCSR comes back");
    check(memcmp(output.data(), plain.output.data(), output.size() * sizeof(float)) == 0 &&
              memcmp(row.data(), plain.row.data(), row.size() * sizeof(float)) == 0,
          "flush-to-zero on entry changes no bit");
  }
#endif
}

// Runs calls from several threads at once and calls from inside tasks, and counts tasks.
void check_pool() {
  Plain expected(2000, 100);
  expected.run();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Plain plain(2000, 100);
      for (int i = 0; i < 60; ++i) {
        const bridge_executor pool = bridge_pool(1 + (t + i) % 4);
        std::fill(plain.output.begin(), plain.output.end(), -1.0f);
        if (plain.run(&pool) != BRIDGE_OK || plain.output != expected.output ||
            plain.row != expected.row)
          ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  check(wrong == 0, "calls from several threads");

  struct Nest {
    std::atomic<int64_t> count{0};
    static void inner(void* self, int64_t) { ++static_cast<Nest*>(self)->count; }
    static void outer(void* self, int64_t) {
      const bridge_executor pool = bridge_pool(3);
      pool.run(pool.context, 5, inner, self);
    }
  };
  bool all = true;
  for (int i = 0; i < 20000; ++i) {
    Nest nest;
    const bridge_executor pool = bridge_pool(2 + i % 3);
    pool.run(pool.context, 1 + i % 7, i % 2 ? Nest::inner : Nest::outer, &nest);
    all = all && nest.count == (1 + i % 7) * (i % 2 ? 1 : 5);
  }
  check(all, "every task runs once, nested ones too");
}

// Every thread begins with tasks of its own, and each task is taken once.
void check_task_ranges() {
  bool all = true;
  for (const int64_t threads : {1, 2, 3, 31, 32, 33, 100})
    for (const int64_t tasks : {0, 1, 7, 32, 400}) {
      bridge::TaskRanges ranges;
      std::vector<std::atomic<int>> taken(static_cast<size_t>(tasks));
      std::vector<std::thread> others;
      const auto take = [&](int64_t thread) {
        ranges.take(thread, [&](int64_t task) { ++taken[static_cast<size_t>(task)]; });
      };
      ranges.deal(tasks, threads);
      for (int64_t t = 1; t < std::min<int64_t>(threads, 5); ++t) others.emplace_back(take, t);
      take(0);
      for (std::thread& thread : others) thread.join();
      for (const std::atomic<int>& count : taken) all = all && count == 1;
    }
  check(all, "every task is dealt once");
  std::vector<int64_t> firsts;
  bridge::TaskRanges ranges;
  for (int64_t thread = 0; thread < 4; ++thread) {
    bool is_first = true;
    ranges.deal(12, 4);
    ranges.take(thread, [&](int64_t task) {
      if (is_first) firsts.push_back(task);
      is_first = false;
    });
  }
  check(firsts == std::vector<int64_t>{0, 3, 6, 9}, "a thread begins with its own tasks");
}

// Memory that several threads take and leave has one owner at a time, and its amount is bounded.
void check_kept_memory() {
  check(bridge::take_memory(bridge::kLeastLargeBytes) == nullptr, "nothing is kept at first");
  constexpr int64_t limit = int64_t{24} << 20;
  bridge::keep_memory(limit);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t)
    threads.emplace_back([&wrong, t] {
      struct Held {
        int64_t* words;
        int64_t bytes, mark;
      };
      std::vector<Held> held;
      for (int64_t i = 0; i < 400; ++i) {
        const int64_t bytes = bridge::kLeastLargeBytes + 8 * (i % 3) * 300007;
        auto* words = static_cast<int64_t*>(bridge::take_memory(bytes));
        const int64_t mark = t << 32 | i, last = bytes / 8 - 1;
        if (words == nullptr) {
          ++wrong;
          continue;
        }
        words[0] = words[last] = mark;
        held.push_back({words, bytes, mark});
        const size_t most = i + 1 < 400 ? 2 : 0;
        while (held.size() > most) {
          const Held oldest = held.front();
          held.erase(held.begin());
          if (oldest.words[0] != oldest.mark || oldest.words[oldest.bytes / 8 - 1] != oldest.mark)
            ++wrong;
          bridge::leave_memory(oldest.words, oldest.bytes);
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  check(wrong == 0, "memory is one thread's alone");
  check(bridge::kept_memory() > 0 && bridge::kept_memory() <= limit, "what is kept is bounded");
  bridge::keep_memory(0);
  check(bridge::kept_memory() == 0, "all of it is given back");
}

// A call on few elements stays in the calling thread.
void check_few_elements() {
  int64_t runs = 0;
  const bridge_executor counting{
      &runs, 8, [](void* context, int64_t tasks, bridge_task task, void* task_context) {
        ++*static_cast<int64_t*>(context);
        for (int64_t i = 0; i < tasks; ++i) task(task_context, i);
      }};
  for (int64_t rows : {1, 20, 300}) {
    Plain plain(rows, 100);
    check(plain.run(&counting) == BRIDGE_OK && runs == 0, "few elements wake nobody");
  }
  Plain plain(3000, 100);
  check(plain.run(&counting) == BRIDGE_OK && runs > 0, "many elements are shared out");
}

void check_fork() {
  const pid_t child = fork();
  if (child == 0) {
    Plain plain(2000, 100), alone(2000, 100);
    const bridge_executor pool = bridge_pool(3);
    bool same = plain.run(&pool) == BRIDGE_OK;
    same = same && alone.run() == BRIDGE_OK;
    _exit(same && plain.row == alone.row ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the pool works in a forked child");
}

// An emulator of the processor does not start processes. scripts/try_emulated.py starts these.
constexpr int kOfAnotherProcessor = 98;

// Runs in a child with the environment variable set; every call reports an error in it.
void check_isa_from_environment() {
  check(bridge_set_cpu_isa("mips") == BRIDGE_INVALID_ARGUMENT &&
            strstr(bridge_last_error(), "mips") != nullptr,
        "an unknown instruction set");
  for (const char* name : {"sparc", bridge_cpu_isas()[0]}) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("BRIDGE_CPU_ISA", name, 1);
      execl("/proc/self/exe", "library_check", "--one-call", name, static_cast<char*>(nullptr));
      _exit(errno == ENOEXEC ? kOfAnotherProcessor : 99);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kOfAnotherProcessor) {
      printf("BRIDGE_CPU_ISA=%s is not tried: no process can be started here\n", name);
      continue;
    }
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0,
          std::string("BRIDGE_CPU_ISA=") + name + " is taken or refused by every call");
  }
}

int one_call(const char* isa) {
  bool known = false;
  for (const char* const* name = bridge_cpu_isas(); *name != nullptr; ++name)
    known = known || strcmp(*name, isa) == 0;
  for (int i = 0; i < 2; ++i) {
    Plain plain(4, 8);
    const bridge_status status = plain.run();
    const bool refused = status == BRIDGE_INVALID_ARGUMENT &&
                         strstr(bridge_last_error(), isa) != nullptr &&
                         strstr(bridge_last_error(), "BRIDGE_CPU_ISA") != nullptr;
    const bool taken = status == BRIDGE_OK && strcmp(bridge_cpu_isa(), isa) == 0;
    if (!(known ? taken || refused : refused)) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && strcmp(argv[1], "--one-call") == 0) return one_call(argv[2]);
  check_float_environment();
  check_pool();
  check_task_ranges();
  check_kept_memory();
  check_few_elements();
  check_fork();
  check_isa_from_environment();
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
