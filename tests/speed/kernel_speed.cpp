// How fast every kernel is on a GPU, through the C functions, beside a copy of the same device:
// each call on arrays far larger than the L2 cache, launched one by one and as a CUDA graph.
//
//   kernel_speed [--library PATH] [--jsonl FILE] [--seconds N] [--only SUBSTRING]
//   kernel_speed --list | --list-profile       the rows, or those worth profiling; needs no device
//   kernel_speed --profile NAME                 one row's call between cudaProfilerStart and -Stop:
//     ncu --profile-from-start off --clock-control none kernel_speed --profile NAME
//
// GB/s counts the fewest bytes that a call must move: every operand once, and of the operands of a
// causal call what is not hidden. The important rows come first, and each is written as soon as it
// is measured, so that whatever ends the program loses nothing. Exit status: 0, also where the
// seconds were over before all rows were measured (the last record says so); 1 if a row failed; 2
// for a bad argument; 3 without a device.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "device.h"
#include "rows.h"

namespace {

using namespace bridge::speed;

struct Arguments {
  std::string library;
  std::string jsonl;
  std::string only;
  std::string profile;
  double seconds = INFINITY;
  bool list = false;
  bool list_profile = false;
};

double seconds_of(const char* text) {
  char* end = nullptr;
  const double seconds = strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds >= 0))
    throw Exit{kBadArgument, std::string("--seconds is '") + text + "', expected a number from 0"};
  return seconds;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--list" || name == "--list-profile") {
      (name == "--list" ? arguments.list : arguments.list_profile) = true;
      continue;
    }
    std::string* text = name == "--library"   ? &arguments.library
                        : name == "--jsonl"   ? &arguments.jsonl
                        : name == "--only"    ? &arguments.only
                        : name == "--profile" ? &arguments.profile
                                              : nullptr;
    if (text == nullptr && name != "--seconds")
      throw Exit{kBadArgument, "there is no option '" + name +
                                   "', expected --library, --jsonl, --seconds, --only, --profile, "
                                   "--list or --list-profile"};
    if (++i == argc || argv[i][0] == '\0') throw Exit{kBadArgument, name + " needs a value"};
    if (text != nullptr)
      *text = argv[i];
    else
      arguments.seconds = seconds_of(argv[i]);
  }
  return arguments;
}

// The rows that were asked for; the copies belong to all of them.
std::vector<Row> rows_for(const Arguments& arguments) {
  std::vector<Row> rows;
  bool found = false;
  for (const Row& row : all_rows()) {
    const std::string name = row.name();
    const bool asked = arguments.profile.empty() ? name.find(arguments.only) != std::string::npos
                                                 : name == arguments.profile;
    found |= asked;
    if (asked || (arguments.profile.empty() && row.is_copy())) rows.push_back(row);
  }
  if (!found)
    throw Exit{kBadArgument, arguments.profile.empty()
                                 ? "--only '" + arguments.only + "' is in no row's name"
                                 : "--profile: there is no row '" + arguments.profile + "'"};
  return rows;
}

int64_t operand_bytes(const Row& row, int64_t array_bytes) {
  Operands operands;
  row.make(operands, row.shape(array_bytes));
  return operands.bytes();
}

void list(const std::vector<Row>& rows) {
  const int64_t array_bytes = int64_t{1} << 30;
  for (const Row& row : rows) {
    const Shape shape = row.shape(array_bytes);
    Operands operands;
    row.make(operands, shape);
    printf("%-64s %9lld x %-7lld %9.1f MB moved\n", row.name().c_str(),
           static_cast<long long>(shape.rows()), static_cast<long long>(shape.cols),
           static_cast<double>(operands.moved()) * 1e-6);
  }
}

struct Quartiles {
  double lower, median, upper;
};
Quartiles quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double part) {
    const double place = part * static_cast<double>(values.size() - 1);
    const size_t below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

// The device's memory: a workspace, and behind it the operands of as many calls as fit.
class Bench {
 public:
  Bench(Device& device, const std::vector<Row>& rows)
      : device_(device), limits_(device.limits()), array_bytes_(limits_.array_bytes) {
    while (!fits(rows)) {
      array_bytes_ /= 2;
      if (array_bytes_ < 1024) throw Exit{kFailed, "the device has too little free memory"};
    }
    operand_bytes_ =
        std::max(operand_bytes_, std::min(limits_.distinct, limits_.memory - workspace_bytes_));
    memory_ = device.allocate(workspace_bytes_ + operand_bytes_);
  }

  int64_t array_bytes() const { return array_bytes_; }
  double copy_rate() const { return copy_rate_; }

  // Adds what is measured to the record, and returns the line for a reader.
  std::string measure(const Row& row, JsonLine* record) {
    prepare(row);
    record->add("sets", static_cast<int64_t>(calls_.size())).add("bytes", moved_);
    check_results(row);
    const double once = quartiles(device_.time([&] { enqueue(1); }, 3, Launch::one_by_one)).median;
    const double wanted = limits_.sample_seconds / std::max(once, 1e-7);
    const size_t count = std::max({calls_.size(), static_cast<size_t>(limits_.fewest_calls),
                                   static_cast<size_t>(std::min(wanted, 256.0))});
    record->add("calls", static_cast<int64_t>(count));
    char line[200] = "";
    double best = 0;
    for (const Launch launch : {Launch::one_by_one, Launch::as_graph}) {
      const Quartiles turn =
          quartiles(device_.time([&] { enqueue(count); }, limits_.samples, launch));
      const double calls = static_cast<double>(count);
      const double rate = static_cast<double>(moved_) * calls / turn.median * 1e-9;
      best = std::max(best, rate);
      // A large copy is the measure of the rest, and of itself none.
      const bool is_measure = row.is_copy() && row.few_rows == 0;
      if (is_measure) copy_rate_ = std::max(copy_rate_, rate);
      JsonLine times;
      times.add("seconds", turn.median / calls)
          .add("lower_quartile", turn.lower / calls)
          .add("upper_quartile", turn.upper / calls)
          .add("samples", int64_t{limits_.samples})
          .add("gb_per_second", rate);
      if (!is_measure) times.add("of_copy", rate / copy_rate_);
      record->add(launch == Launch::as_graph ? "graph" : "one_by_one", times);
      const size_t used = strlen(line);
      snprintf(line + used, sizeof line - used, " %10.2f us %7.1f GB/s", turn.median / calls * 1e6,
               rate);
    }
    char part[32] = "";
    if (copy_rate_ > 0) snprintf(part, sizeof part, " %6.1f %%", best / copy_rate_ * 100);
    return std::string(line) + part;
  }

  void profile(const Row& row) {
    prepare(row);
    check_results(row);
    device_.profile([&] { enqueue(1); });
  }

 private:
  bool fits(const std::vector<Row>& rows) {
    workspace_bytes_ = operand_bytes_ = 0;
    for (const Row& row : rows) {
      Operands operands;
      const AnyCall call = row.make(operands, row.shape(array_bytes_));
      operand_bytes_ = std::max(operand_bytes_, operands.bytes());
      workspace_bytes_ =
          std::max(workspace_bytes_, static_cast<int64_t>(device_.workspace_bytes(call)));
    }
    workspace_bytes_ = (workspace_bytes_ / Operands::kAlignment + 1) * Operands::kAlignment;
    return workspace_bytes_ + operand_bytes_ <= limits_.memory;
  }

  // Lays out as many calls as it takes that none finds its operands in a cache, and fills them.
  void prepare(const Row& row) {
    const Shape shape = row.shape(array_bytes_);
    const int64_t bytes = operand_bytes(row, array_bytes_);
    const int64_t sets =
        std::clamp<int64_t>((limits_.distinct + bytes - 1) / bytes, 1, operand_bytes_ / bytes);
    calls_.clear();
    results_.clear();
    for (int64_t set = 0; set < sets; ++set) {
      Operands operands(memory_ + workspace_bytes_ + set * bytes);
      calls_.push_back(row.make(operands, shape));
      moved_ = operands.moved();
      for (const Operand& operand : operands.all()) {
        device_.fill(operand, ++seed_ << 40);
        if (operand.values == Values::result) results_.push_back(operand);
      }
    }
  }

  // A kernel that did not run, or not all of it, would be the fastest.
  void check_results(const Row& row) {
    enqueue(calls_.size());
    for (const Operand& result : results_) {
      const int64_t count = device_.count_not_finite(result);
      if (count > 0)
        throw Failure(std::to_string(count) + " of " + std::to_string(result.count) +
                      " elements of a result of " + row.name() + " are not finite, or not written");
    }
  }

  void enqueue(size_t count) {
    for (size_t i = 0; i < count; ++i)
      device_.enqueue(calls_[i % calls_.size()], memory_, static_cast<size_t>(workspace_bytes_));
  }

  Device& device_;
  Limits limits_;
  int64_t array_bytes_;
  int64_t workspace_bytes_ = 0;
  int64_t operand_bytes_ = 0;
  char* memory_ = nullptr;
  std::vector<AnyCall> calls_;
  std::vector<Operand> results_;
  int64_t moved_ = 0;
  uint64_t seed_ = 0;
  double copy_rate_ = 0;
};

// The file of records, each complete in the file before it is printed.
class Records {
 public:
  explicit Records(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_ = fopen(path.c_str(), "w");
    if (file_ == nullptr)
      throw Exit{kBadArgument, "--jsonl: " + path + ": " + std::string(strerror(errno))};
  }
  Records(const Records&) = delete;
  ~Records() {
    if (file_ != nullptr) fclose(file_);
  }
  void write(const JsonLine& record) {
    if (file_ == nullptr) return;
    if (fprintf(file_, "%s\n", record.text().c_str()) < 0 || fflush(file_) != 0)
      throw Exit{kFailed, path_ + ": " + std::string(strerror(errno))};
  }

 private:
  std::string path_;
  FILE* file_ = nullptr;
};

int run(const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  if (arguments.list_profile) {
    for (const std::string& name : profiled_rows()) printf("%s\n", name.c_str());
    return 0;
  }
  const std::vector<Row> rows = rows_for(arguments);
  if (arguments.list) {
    list(rows);
    return 0;
  }
  const std::unique_ptr<Device> device = open_device(arguments.library);
  Bench bench(*device, rows);
  if (!arguments.profile.empty()) {
    bench.profile(rows.front());
    return 0;
  }
  Records records(arguments.jsonl);
  JsonLine header("device");
  device->describe(&header);
  header.add("array_bytes", bench.array_bytes()).add("rows", static_cast<int64_t>(rows.size()));
  records.write(header);
  printf("%s\n%-64s %19s %32s %27s %8s\n", header.text().c_str(), "", "rows x columns",
         "one by one", "in a graph", "of copy");

  int64_t measured = 0, failed = 0;
  double longest = 0;
  bool works = true;
  for (const Row& row : rows) {
    const double begin = passed();
    if (!works || begin + longest >= arguments.seconds) break;
    const Shape shape = row.shape(bench.array_bytes());
    JsonLine record("row");
    record.add("name", row.name()).add("op", row.op).add("kind", row.kind).add("dtype", row.dtype);
    record.add("batch", shape.batch).add("heads", shape.heads).add("queries", shape.queries);
    record.add("cols", shape.cols);
    std::string line;
    try {
      line = bench.measure(row, &record);
      ++measured;
    } catch (const Failure& failure) {
      record.add("error", failure.what());
      line = std::string("  FAILED: ") + failure.what();
      ++failed;
      works = device->still_works();
    }
    records.write(record);
    printf("%-64s %9lld x %-7lld%s\n", row.name().c_str(), static_cast<long long>(shape.rows()),
           static_cast<long long>(shape.cols), line.c_str());
    fflush(stdout);
    longest = std::max(longest, passed() - begin);
  }
  const bool complete = measured + failed == static_cast<int64_t>(rows.size());
  records.write(JsonLine("end")
                    .add("complete", complete)
                    .add("measured", measured)
                    .add("failed", failed)
                    .add("rows", static_cast<int64_t>(rows.size()))
                    .add("copy_gb_per_second", bench.copy_rate())
                    .add("seconds", passed()));
  printf("%lld of %zu rows measured, %lld failed, in %.1f s; a copy reaches %.1f GB/s\n",
         static_cast<long long>(measured), rows.size(), static_cast<long long>(failed), passed(),
         bench.copy_rate());
  return failed > 0 ? kFailed : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const Exit& exit) {
    fprintf(stderr, "kernel_speed: %s\n", exit.why.c_str());
    return exit.status;
  } catch (const Failure& failure) {
    fprintf(stderr, "kernel_speed: %s\n", failure.what());
    return kFailed;
  }
}
