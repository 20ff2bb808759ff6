// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/open_device.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/reach.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {
namespace {

constexpr int64_t kPage = 4096;

std::mutex options_mutex;
DeviceOptions device_options;
std::atomic<int64_t> num_launches = 0;
std::atomic<int64_t> num_bytes = 0;
std::atomic<int64_t> num_replays = 0;
std::atomic<int64_t> num_drains = 0;
thread_local std::vector<const char*> open_ranges;
std::mutex ranges_mutex;
std::set<std::string> begun_ranges;  // guarded by ranges_mutex

class Recorded final : public kernels::RecordedWork {
 public:
  Recorded(CUstream_st* stream, std::vector<StreamWork> work)
      : stream_(stream), work_(std::move(work)) {}

  void run() override {
    const std::scoped_lock lock(stream_->mutex);
    CHECK(!stream_->is_recording);
    for (const StreamWork& item : work_) stream_->add(item);
    ++num_replays;
  }

 private:
  CUstream_st* stream_;
  const std::vector<StreamWork> work_;
};

// Returns the position behind everything in the stream so far.
int64_t end_of(CUstream_st& stream) {
  const std::scoped_lock lock(stream.mutex);
  CHECK(!stream.is_recording);
  return stream.end();
}

// Takes the work before `end` from the stream.
std::vector<StreamWork> take_until(CUstream_st& stream, int64_t end) {
  std::vector<StreamWork> work;
  const std::scoped_lock lock(stream.mutex);
  CHECK(!stream.is_recording);
  for (; stream.num_begun < end; ++stream.num_begun) {
    work.push_back(std::move(stream.work.front()));
    stream.work.pop_front();
  }
  return work;
}

// Holds `behind` up until `wait` returns.
void add_wait(CUstream_st& behind, std::function<void()> wait) {
  const std::scoped_lock lock(behind.mutex);
  CHECK(!behind.is_recording);
  behind.add({.run = std::move(wait), .waits = true});
}

// A loan's handle: a file of shared memory, by the process that has it open.
struct ShimHandle {
  int64_t process = 0;
  int64_t file = -1;
  int64_t number = 0;  // of the loan, in the file's name

  [[nodiscard]] std::string path() const {
    return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  }

  [[nodiscard]] std::string name() const { return "sluice-shim-" + std::to_string(number); }

  // Whether the file is still what was lent: a number may be another file's by now.
  [[nodiscard]] bool is_there() const {
    std::array<char, 256> target{};
    const ssize_t size = readlink(path().c_str(), target.data(), target.size());
    return size > 0 && std::string_view(target.data(), static_cast<size_t>(size))
                           .starts_with("/memfd:" + name() + " ");
  }
};

constexpr std::byte kShimDevice{0x5d};  // all of its UUID but the last byte

// Windows that all devices reach, open even while no work of their own device runs.
std::mutex windows_mutex;
std::map<std::byte*, int64_t> windows;  // guarded by windows_mutex

std::atomic<int64_t> num_loans = 0;

class ShimMemory final : public kernels::DeviceMemory {
 public:
  ShimMemory(const DeviceOptions& options, int number)
      : options_(options),
        number_(number),
        runs_at_once_(number > 0 || options.first_runs_at_once) {
    if (runs_at_once_) runner_ = std::thread([this] { run_all(); });
  }

  ~ShimMemory() override {
    wait();
    if (runs_at_once_) {
      {
        const std::scoped_lock lock(stream_.mutex);
        is_ending_ = true;
        stream_.added.notify_all();
      }
      runner_.join();
    }
    CHECK(mapped_.empty());
    CHECK(borrowed_.empty());
  }

  void enter() const override {}

  CUstream_st* stream() { return &stream_; }

  Expected<std::byte*> allocate(int64_t bytes, const char* purpose, AlignedBuffer::Pages) override {
    check_not_recording();
    const std::scoped_lock lock(mutex_);
    const int64_t mapped = align_up(bytes, kPage);
    if (used_ + mapped > options_.free_bytes) {
      return make_error(ErrorCode::kResourceExhausted,
                        std::string(purpose) + ": cannot get " + std::to_string(bytes) +
                            " bytes from the device");
    }
    // An unmapped page follows.
    void* const data = mmap(nullptr,
                            static_cast<size_t>(mapped + kPage),
                            PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1,
                            0);
    CHECK(data != MAP_FAILED);
    used_ += mapped;
    num_bytes += mapped;
    mapped_[static_cast<std::byte*>(data)] = mapped;
    return static_cast<std::byte*>(data);
  }

  void release(std::byte* data) override {
    wait();
    const std::scoped_lock lock(mutex_);
    const auto found = mapped_.find(data);
    CHECK(found != mapped_.end());
    {
      const std::scoped_lock windows_lock(windows_mutex);
      windows.erase(data);
    }
    munmap(data, static_cast<size_t>(found->second + kPage));
    if (const auto lent = lent_.find(data); lent != lent_.end()) {
      close(static_cast<int>(lent->second.file));
      lent_.erase(lent);
    }
    used_ -= found->second;
    num_bytes -= found->second;
    mapped_.erase(found);
  }

  Expected<std::byte*> allocate_pinned(int64_t bytes, const char*) override {
    check_not_recording();
    constexpr int kPoison = 0xA5;
    auto* const data = static_cast<std::byte*>(std::malloc(static_cast<size_t>(bytes)));
    CHECK(data != nullptr);
    std::memset(data, kPoison, static_cast<size_t>(bytes));
    return data;
  }

  void release_pinned(std::byte* data) override {
    wait();
    std::free(data);
  }

  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    check_not_recording();
    copy_later(to, from, bytes);
  }

  void upload_rows(std::byte* to,
                   const std::byte* from,
                   int64_t bytes,
                   int64_t stride,
                   int64_t num_rows) override {
    CHECK(num_rows == 0 || (bytes > 0 && bytes <= stride));
    for (int64_t row = 0; row < num_rows; ++row) {
      upload(to + row * stride, from + row * stride, bytes);
    }
  }

  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_later(to, from, bytes);
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_later(to, from, bytes);
  }

  void wait() override { run_until(end_of(stream_)); }

  std::unique_ptr<kernels::DeviceEvent> make_event() override {
    return std::make_unique<Event>(stream_, [this](int64_t end) { run_until(end); });
  }

  std::unique_ptr<kernels::DeviceQueue> make_queue() override {
    return std::make_unique<Queue>(*this);
  }

  void run_until(int64_t end) {
    if (runs_at_once_) {
      std::unique_lock lock(stream_.mutex);
      done_.wait(lock, [&] { return num_done_ >= end; });
      stream_.waited = std::max(stream_.waited, end);
      return;
    }
    const std::scoped_lock running(running_);
    const std::vector<StreamWork> work = take_until(stream_, end);
    if (!work.empty() && end_of(stream_) == end) ++num_drains;
    run(work, /*host_waited=*/true);
  }

  void begin_recording() override {
    const std::scoped_lock lock(stream_.mutex);
    CHECK(!stream_.is_recording);
    stream_.is_recording = true;
  }

  Expected<std::unique_ptr<kernels::RecordedWork>> end_recording() override {
    const std::scoped_lock lock(stream_.mutex);
    CHECK(stream_.is_recording);
    stream_.is_recording = false;
    if (number_ == options_.fails_to_record) {
      stream_.recorded.clear();
      return make_error(ErrorCode::kResourceExhausted, "the shim records nothing");
    }
    return std::make_unique<Recorded>(&stream_, std::exchange(stream_.recorded, {}));
  }

  [[nodiscard]] kernels::DeviceId id() const override {
    kernels::DeviceId id;
    id.fill(kShimDevice);
    id.back() = static_cast<std::byte>(options_.gpu);
    return id;
  }

  [[nodiscard]] bool reaches(const kernels::DeviceId& device) const override {
    return device == id();
  }

  // The pages become those of a file, with what is in them.
  Expected<kernels::MemoryLoan> lend(const std::byte* data) override {
    const std::scoped_lock running(running_);
    const std::scoped_lock lock(mutex_);
    const auto found = mapped_.find(const_cast<std::byte*>(data));
    CHECK(found != mapped_.end());
    const auto bytes = static_cast<size_t>(found->second);
    auto [at, is_new] = lent_.try_emplace(found->first);
    if (is_new) {
      at->second = {.process = getpid(), .file = -1, .number = ++num_loans};
      const int file = memfd_create(at->second.name().c_str(), MFD_CLOEXEC);
      CHECK(file >= 0);
      at->second.file = file;
      CHECK_EQ(mprotect(found->first, bytes, PROT_READ), 0);
      CHECK_EQ(write(file, data, bytes), static_cast<ssize_t>(bytes));
      CHECK(mmap(found->first, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == found->first);
    }
    kernels::MemoryLoan loan;
    std::memcpy(loan.handle.data(), &at->second, sizeof(ShimHandle));
    loan.device = id();
    loan.bytes = bytes;
    return loan;
  }

  Expected<const std::byte*> borrow(const kernels::MemoryLoan& loan) override {
    const auto refuse = [](const char* why) { return make_error(ErrorCode::kUnavailable, why); };
    if (!reaches(loan.device)) return refuse("the lender's GPU is none that is seen here");
    ShimHandle handle;
    std::memcpy(&handle, loan.handle.data(), sizeof(handle));
    if (!handle.is_there()) return refuse("there is no such memory of another process");
    const int file = ::open(handle.path().c_str(), O_RDONLY | O_CLOEXEC);
    struct stat found {};
    const bool is_it = file >= 0 && fstat(file, &found) == 0 &&
                       static_cast<uint64_t>(found.st_size) >= loan.bytes;
    void* const data =
        is_it ? mmap(nullptr, loan.bytes, PROT_NONE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    if (data == MAP_FAILED) return refuse("lent memory has fewer bytes");
    const std::scoped_lock lock(mutex_);
    borrowed_[static_cast<std::byte*>(data)] = static_cast<int64_t>(loan.bytes);
    return static_cast<const std::byte*>(data);
  }

  void give_back(const std::byte* data) override {
    const std::scoped_lock running(running_);
    const std::scoped_lock lock(mutex_);
    const auto found = borrowed_.find(const_cast<std::byte*>(data));
    CHECK(found != borrowed_.end());
    munmap(found->first, static_cast<size_t>(found->second));
    borrowed_.erase(found);
  }

  bool open_window(std::byte* data) {
    if (!options_.reaches_peers) return false;
    const std::scoped_lock running(running_);
    const std::scoped_lock lock(mutex_, windows_mutex);
    const auto found = mapped_.find(data);
    CHECK(found != mapped_.end());
    CHECK_EQ(mprotect(data, static_cast<size_t>(found->second), PROT_READ | PROT_WRITE), 0);
    windows[data] = found->second;
    return true;
  }

  [[nodiscard]] int64_t free_bytes() const override {
    const std::scoped_lock lock(mutex_);
    return options_.free_bytes - used_;
  }

 private:
  class Event final : public kernels::DeviceEvent {
   public:
    Event(CUstream_st& stream, std::function<void(int64_t)> run_until)
        : stream_(stream), run_until_(std::move(run_until)) {}

    void record() override {
      CHECK(end_of(stream_) >= end_);  // fails while recording
      enqueue(&stream_, [time = time_] { *time = Clock::now(); });
      end_ = end_of(stream_);
      was_asked_ = false;
    }

    void wait() override { run_until_(end_); }

    // A device continues by itself; here the first question lets it, and the next finds it done.
    [[nodiscard]] bool is_done() override {
      if (!std::exchange(was_asked_, true)) return end_ == 0;
      run_until_(end_);
      return true;
    }

    [[nodiscard]] double seconds_since(const kernels::DeviceEvent& before) const override {
      const Clock::time_point begin = *static_cast<const Event&>(before).time_;
      CHECK(begin != Clock::time_point() && *time_ != Clock::time_point());  // both are recorded
      return std::chrono::duration<double>(*time_ - begin).count();
    }

   private:
    using Clock = std::chrono::steady_clock;

    CUstream_st& stream_;
    const std::function<void(int64_t)> run_until_;
    int64_t end_ = 0;
    bool was_asked_ = false;
    std::shared_ptr<Clock::time_point> time_ = std::make_shared<Clock::time_point>();
  };

  // An order of its own, beside the operators.
  struct Lane {
    explicit Lane(ShimMemory& of) : memory(of) {}

    void run_until(int64_t end) {
      const std::scoped_lock running(memory.running_);
      memory.run(take_until(stream, end), /*host_waited=*/true);
    }

    ShimMemory& memory;
    CUstream_st stream;
  };

  class Queue final : public kernels::DeviceQueue {
   public:
    explicit Queue(ShimMemory& memory) : lane_(std::make_shared<Lane>(memory)) {}

    ~Queue() override { lane_->run_until(end_of(lane_->stream)); }

    [[nodiscard]] CUstream_st* stream() const override { return &lane_->stream; }

    void follow() override {
      ShimMemory& memory = lane_->memory;
      const int64_t end = end_of(memory.stream_);
      add_wait(lane_->stream, [&memory, end] { memory.run_until(end); });
    }

    void lead() override {
      const int64_t end = end_of(lane_->stream);
      add_wait(lane_->memory.stream_, [lane = lane_, end] { lane->run_until(end); });
    }

    void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
      copy_later(lane_->stream, to, from, bytes);
    }

    void download(std::byte* to, const std::byte* from, int64_t bytes) override {
      copy_later(lane_->stream, to, from, bytes);
    }

    void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
      copy_later(lane_->stream, to, from, bytes);
    }

    std::unique_ptr<kernels::DeviceEvent> make_event() override {
      return std::make_unique<Event>(lane_->stream,
                                     [lane = lane_](int64_t end) { lane->run_until(end); });
    }

   private:
    const std::shared_ptr<Lane> lane_;  // the operators' stream holds it for lead()
  };

  void check_not_recording() {
    const std::scoped_lock lock(stream_.mutex);
    CHECK(!stream_.is_recording);
  }

  // A launch that overlaps may not rely on work of another stream that its own one waits for: CUDA
  // does not say that such a launch waits for more than its stream's launches (gpu.h).
  void run(const std::vector<StreamWork>& work, bool host_waited) {
    for (auto at = work.begin(); at != work.end();) {
      const auto next =
          std::ranges::find(at, work.end(), at->waits ? false : true, &StreamWork::waits);
      if (at->waits) {
        std::for_each(at, next, [](const StreamWork& item) { item.run(); });
        host_waited = false;
      } else {
        run_work({at, next}, host_waited);
      }
      at = next;
    }
  }

  void run_work(std::span<const StreamWork> work, bool host_waited) {
    const std::scoped_lock running(running_);
    Reach own;
    open_memory(PROT_READ | PROT_WRITE, &own);
    {
      reach = &own;
      Run run(options_.seed + num_waits_++, Mode::kPlain, host_waited);
      for (const StreamWork& item : work) item.run();
      num_launches += run.num_launches();
      const std::vector<std::string> reports = run.take_reports();
      for (const std::string& report : reports) std::fprintf(stderr, "simt: %s\n", report.c_str());
      if (!reports.empty()) std::abort();
      reach = nullptr;
    }
    open_memory(PROT_NONE, nullptr);
  }

  // Runs work as it comes, until there will be no more. One piece at a time: work that waits for
  // another device must not hold up threads that wait for earlier work.
  void run_all() {
    for (;;) {
      std::vector<StreamWork> work;
      {
        std::unique_lock lock(stream_.mutex);
        stream_.added.wait(lock, [this] { return is_ending_ || !stream_.work.empty(); });
        if (stream_.work.empty()) return;
        work.push_back(std::move(stream_.work.front()));
        stream_.work.pop_front();
        ++stream_.num_begun;
      }
      if (work.front().host_waited) begin_launch(false);
      run(work, /*host_waited=*/false);
      const std::scoped_lock lock(stream_.mutex);
      ++num_done_;
      done_.notify_all();
    }
  }

  void copy_later(std::byte* to, const std::byte* from, int64_t bytes) {
    copy_later(stream_, to, from, bytes);
  }

  static void copy_later(CUstream_st& stream, std::byte* to, const std::byte* from, int64_t bytes) {
    enqueue(&stream, [to, from, bytes] {
      std::memcpy(to, from, static_cast<size_t>(bytes));
      note_copied(to, bytes);
    });
  }

  void open_memory(int protection, Reach* reachable) {
    const std::scoped_lock lock(mutex_, windows_mutex);
    for (const auto& [data, bytes] : windows) {
      if (reachable != nullptr) reachable->add(data, bytes);
    }
    for (const auto& [data, bytes] : mapped_) {
      if (windows.contains(data)) continue;
      if (reachable != nullptr) reachable->add(data, bytes);
      CHECK_EQ(mprotect(data, static_cast<size_t>(bytes), protection), 0);
    }
    for (const auto& [data, bytes] : borrowed_) {
      if (reachable != nullptr) reachable->add(data, bytes);
      CHECK_EQ(mprotect(data, static_cast<size_t>(bytes), protection & ~PROT_WRITE), 0);
    }
  }

  const DeviceOptions options_;
  const int number_;
  const bool runs_at_once_;
  CUstream_st stream_;
  std::recursive_mutex running_;  // held while work of the device runs, and what it waits for
  uint64_t num_waits_ = 0;        // guarded by running_
  mutable std::mutex mutex_;
  std::map<std::byte*, int64_t> mapped_;  // guarded by mutex_
  std::map<std::byte*, int64_t> borrowed_;  // guarded by mutex_
  std::map<std::byte*, ShimHandle> lent_;   // of mapped_; guarded by mutex_
  int64_t used_ = 0;                      // guarded by mutex_
  // State of devices that run work at once; guarded by the stream's mutex.
  int64_t num_done_ = 0;
  std::condition_variable done_;
  bool is_ending_ = false;
  std::thread runner_;
};

}  // namespace

void set_device_options(const DeviceOptions& options) {
  const std::scoped_lock lock(options_mutex);
  device_options = options;
}

int64_t num_device_launches() { return num_launches; }

int64_t num_device_bytes() { return num_bytes; }

int64_t num_device_replays() { return num_replays; }

int64_t num_device_drains() { return num_drains; }

std::set<std::string> take_ranges() {
  const std::scoped_lock lock(ranges_mutex);
  return std::exchange(begun_ranges, {});
}

}  // namespace sluice::simt

namespace sluice::kernels::cuda {

void begin_range(const char* name) {
  simt::open_ranges.emplace_back(name);
  std::string path;
  for (const char* const part : simt::open_ranges) {
    path += (path.empty() ? "" : "/") + std::string(part);
  }
  const std::scoped_lock lock(simt::ranges_mutex);
  simt::begun_ranges.insert(path);
}

void end_range() {
  CHECK(!simt::open_ranges.empty());
  simt::open_ranges.pop_back();
}

bool open_window(DeviceMemory& memory, std::span<std::byte> window, DeviceMemory&) {
  return static_cast<simt::ShimMemory&>(memory).open_window(window.data());
}

Expected<OpenedDevice> open_device(int number) {
  const std::scoped_lock lock(simt::options_mutex);
  if (!simt::device_options.is_there) {
    return no_device("the shim hides it");
  }
  if (number >= simt::device_options.count) {
    return too_few_devices(simt::device_options.count, number);
  }
  auto memory = std::make_unique<simt::ShimMemory>(simt::device_options, number);
  CUstream_st* const stream = memory->stream();
  return OpenedDevice{std::move(memory), stream, simt::device_options.name};
}

}  // namespace sluice::kernels::cuda
