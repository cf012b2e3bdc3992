// bias_gelu of the CPU library against the definition, bit for bit: random calls over sizes,
// strides, dtypes, factors and in-place outputs, with every instruction set and several executors;
// then the pool, the floating-point environment, and what the library refuses.
//
//   bias_gelu_check [calls [seed]]
#include <bridge/bridge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bias_gelu_reference.h"
#include "random_arrays.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace bridge::random;
using bridge::reference::Memory;

using GeluCall = Arrays<bridge_bias_gelu>;

GeluCall random_call(bool large) {
  static const int64_t some_rows[] = {0,  1,   2,   3,   15,  16,  17,  31,  33,  64,
                                      96, 127, 128, 129, 255, 257, 300, 513, 1100};
  static const int64_t some_cols[] = {0,   1,   2,   3,   5,   7,   8,    15,   16,
                                      17,  31,  32,  33,  48,  63,  64,   65,   100,
                                      127, 200, 255, 257, 511, 512, 1000, 1025, 1500};
  GeluCall made;
  bridge_bias_gelu& call = made.call;
  do {
    call.batch = chance(60) ? 1 : pick(4) + (chance(95) ? 1 : 0);
    call.rows = pick_from(some_rows);
    call.cols = pick_from(some_cols);
    if (large && chance(50)) call.rows *= 1 + pick(40);
    if (large && chance(30)) call.cols *= 1 + pick(200);
    if (!large && (call.rows == 0 || call.cols == 0 || call.batch == 0) && chance(90)) continue;
  } while (call.batch * call.rows * call.cols > (large ? 600000 : 20000) ||
           (large && call.batch * call.rows * call.cols < 140000));
  call.form = static_cast<int32_t>(pick(3));
  call.order = static_cast<int32_t>(chance(80) ? pick(3) : large ? 3 : pick(9));
  call.factors = static_cast<int32_t>(chance(65) ? std::min(call.order, 3) : pick(large ? 3 : 7));
  made.memory.reserve(32);
  made.text = "form " + std::to_string(call.form) + " order " + std::to_string(call.order) + " [" +
              std::to_string(call.batch) + "," + std::to_string(call.rows) + "," +
              std::to_string(call.cols) + "]";
  const bool one_dtype = chance(60);
  const int32_t dtype = static_cast<int32_t>(pick(4));
  const int32_t row_dtype = chance(80) ? dtype : static_cast<int32_t>(pick(4));
  auto draw = [&](bool row) {
    return one_dtype ? (row ? row_dtype : dtype) : static_cast<int32_t>(pick(4));
  };
  call.input.full = made.add(draw(false), false, false);
  if (chance(70)) call.input.row = made.add(draw(true), true, false);
  for (int i = 0; i < call.factors; ++i) {
    const bool full = chance(80);
    if (full) call.factor[i].full = made.add(draw(false), false, false);
    if (!full || chance(30)) call.factor[i].row = made.add(draw(true), true, false);
  }
  const int64_t outputs = pick(3);
  if (outputs != 1) {
    call.output.full = made.add(draw(false), false, true);
    // In place of a full input that has an output's layout.
    const bridge_array& source =
        call.factors > 0 && chance(50) ? call.factor[0].full : call.input.full;
    if (chance(20) && source.data != nullptr &&
        source.row_stride >= std::max<int64_t>(call.cols, 1) && source.batch_stride > 0 &&
        (call.batch == 1 || source.batch_stride >= call.rows * source.row_stride)) {
      call.output.full = source;
      made.text += " in place";
    }
  }
  if (outputs != 0) call.output.row = made.add(draw(true), true, true);
  return made;
}

void check_call(GeluCall& made, const std::vector<bridge_executor>& executors) {
  check_bits(made, executors, bridge_bias_gelu_cpu,
             [](const bridge_bias_gelu& call) { bridge::reference::run(call); });
}

// A call on plain dense float arrays, whose values are soon computed.
struct Plain {
  std::vector<float> input, factor, output, row;
  bridge_bias_gelu call{};
  Plain(int64_t rows, int64_t cols) : input(rows * cols), factor(rows * cols), output(rows * cols) {
    row.resize(cols);
    for (size_t i = 0; i < input.size(); ++i) {
      input[i] = static_cast<float>(i % 97) * 0.1f - 5.0f;
      factor[i] = static_cast<float>(i % 31) * 1e-39f;
    }
    auto array = [](std::vector<float>& v, int64_t stride) {
      return bridge_array{v.data(), BRIDGE_FLOAT32, 0, stride};
    };
    call.order = call.factors = 1;
    call.batch = 1, call.rows = rows, call.cols = cols;
    call.input.full = array(input, cols);
    call.factor[0].full = array(factor, cols);
    call.output.full = array(output, cols);
    call.output.row = array(row, 0);
  }
};

void check_float_environment() {
#if defined(__x86_64__)
  for (int64_t rows : {10, 3000}) {
    Plain plain(rows, 100);
    const bridge_executor pool = bridge_pool(3);
    check(bridge_bias_gelu_cpu(&plain.call, &pool) == BRIDGE_OK, "a plain call");
    const std::vector<float> output = plain.output, row = plain.row;
    const unsigned saved = _mm_getcsr(), flushing = 0x9fe2;
    _mm_setcsr(flushing);
    const bridge_status status = bridge_bias_gelu_cpu(&plain.call, &pool);
    const unsigned left = _mm_getcsr();
    _mm_setcsr(saved);
    check(status == BRIDGE_OK && left == flushing, "the caller's MXCSR comes back");
    check(memcmp(output.data(), plain.output.data(), output.size() * sizeof(float)) == 0 &&
              memcmp(row.data(), plain.row.data(), row.size() * sizeof(float)) == 0,
          "flush-to-zero on entry changes no bit");
  }
#endif
}

// Calls from several threads at once, calls from inside tasks, and tasks counted one by one.
void check_pool() {
  Plain expected(2000, 100);
  bridge_bias_gelu_cpu(&expected.call, nullptr);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Plain plain(2000, 100);
      for (int i = 0; i < 60; ++i) {
        const bridge_executor pool = bridge_pool(1 + (t + i) % 4);
        std::fill(plain.output.begin(), plain.output.end(), -1.0f);
        if (bridge_bias_gelu_cpu(&plain.call, &pool) != BRIDGE_OK ||
            plain.output != expected.output || plain.row != expected.row)
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

// A call on few elements stays in the thread that makes it.
void check_few_elements() {
  int64_t runs = 0;
  const bridge_executor counting{
      &runs, 8, [](void* context, int64_t tasks, bridge_task task, void* task_context) {
        ++*static_cast<int64_t*>(context);
        for (int64_t i = 0; i < tasks; ++i) task(task_context, i);
      }};
  for (int64_t rows : {1, 20, 300}) {
    Plain plain(rows, 100);
    check(bridge_bias_gelu_cpu(&plain.call, &counting) == BRIDGE_OK && runs == 0,
          "few elements wake nobody");
  }
  Plain plain(3000, 100);
  check(bridge_bias_gelu_cpu(&plain.call, &counting) == BRIDGE_OK && runs > 0,
        "many elements are shared out");
}

void check_fork() {
  const pid_t child = fork();
  if (child == 0) {
    Plain plain(2000, 100), alone(2000, 100);
    const bridge_executor pool = bridge_pool(3);
    bool same = bridge_bias_gelu_cpu(&plain.call, &pool) == BRIDGE_OK;
    same = same && bridge_bias_gelu_cpu(&alone.call, nullptr) == BRIDGE_OK;
    _exit(same && plain.row == alone.row ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the pool works in a forked child");
}

void check_refusals() {
  auto refused = [](const char* what, auto&& spoil) {
    Plain plain(4, 8);
    spoil(plain.call);
    const bridge_status status = bridge_bias_gelu_cpu(&plain.call, nullptr);
    check(status == BRIDGE_INVALID_ARGUMENT && strstr(bridge_last_error(), what) != nullptr,
          std::string("refused: ") + what + ", said: " + bridge_last_error());
  };
  refused("form", [](bridge_bias_gelu& call) { call.form = 3; });
  refused("order", [](bridge_bias_gelu& call) { call.order = 9; });
  refused("order", [](bridge_bias_gelu& call) { call.order = -1; });
  refused("factors", [](bridge_bias_gelu& call) { call.factors = 7; });
  refused("factor[0]", [](bridge_bias_gelu& call) { call.factor[0].full.data = nullptr; });
  refused("input.full", [](bridge_bias_gelu& call) { call.input.full.data = nullptr; });
  refused("sizes", [](bridge_bias_gelu& call) { call.rows = -1; });
  refused("63 bits", [](bridge_bias_gelu& call) { call.rows = call.cols = int64_t{1} << 32; });
  refused("63 bits",
          [](bridge_bias_gelu& call) { call.factor[0].full.row_stride = int64_t{1} << 61; });
  refused("factor[0].full", [](bridge_bias_gelu& call) { call.factor[0].full.dtype = 4; });
  refused("output.row", [](bridge_bias_gelu& call) { call.output.row.dtype = -1; });
  refused("output.row", [](bridge_bias_gelu& call) { call.output.row.row_stride = 8; });
  refused("outputs",
          [](bridge_bias_gelu& call) { call.output.full.data = call.output.row.data = nullptr; });
  refused("output.full", [](bridge_bias_gelu& call) { call.output.full.row_stride = 7; });
  refused("input.full", [](bridge_bias_gelu& call) {
    call.input.full.data = static_cast<char*>(call.input.full.data) + 1;
  });
  refused("overlaps input.full", [](bridge_bias_gelu& call) {
    call.output.full.data = static_cast<float*>(call.input.full.data) + 1;
  });
  refused("overlaps factor[0].full", [](bridge_bias_gelu& call) {
    call.output.row.data = static_cast<float*>(call.factor[0].full.data) + 8;
  });
  check(bridge_bias_gelu_cpu(nullptr, nullptr) == BRIDGE_INVALID_ARGUMENT, "a null call");
  check(bridge_set_cpu_isa("mips") == BRIDGE_INVALID_ARGUMENT &&
            strstr(bridge_last_error(), "mips") != nullptr,
        "an unknown instruction set");
}

// In a child with the environment variable set: every call says what is wrong with it.
void check_isa_from_environment() {
  for (const char* name : {"sparc", bridge_cpu_isas()[0]}) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("BRIDGE_CPU_ISA", name, 1);
      execl("/proc/self/exe", "bias_gelu_check", "--one-call", name, static_cast<char*>(nullptr));
      _exit(99);
    }
    int status = -1;
    waitpid(child, &status, 0);
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
    const bridge_status status = bridge_bias_gelu_cpu(&plain.call, nullptr);
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
  const int calls = argc > 1 ? atoi(argv[1]) : 500;
  random_bits.seed(argc > 2 ? static_cast<uint64_t>(atoll(argv[2])) : 1);
  const bridge_executor none{nullptr, 1, nullptr};
  for (int i = 0; i < calls; ++i) {
    GeluCall call = random_call(false);
    check_call(call, {none});
  }
  for (int i = 0; i < calls / 25; ++i) {
    GeluCall call = random_call(true);
    check_call(call, {none, bridge_pool(2), bridge_pool(3)});
  }
  check_float_environment();
  check_pool();
  check_few_elements();
  check_fork();
  check_refusals();
  check_isa_from_environment();
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
