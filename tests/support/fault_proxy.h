// SPDX-License-Identifier: Apache-2.0
// A TCP proxy between two peers that does to their bytes what networks do. It ignores their
// meaning, so it serves any protocol. One thread; connections are numbered from 0 as they come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace sluice::test {

struct Fault {
  enum class Kind : uint8_t {
    kNone,
    kFlip,       // one bit of the byte at `at`
    kCut,        // both directions are reset
    kHalfClose,  // this direction ends, the other one goes on
    kStall,      // no byte passes in this direction for `ms`; 0: for ever
  };

  Kind kind = Kind::kNone;
  bool is_answer = false;  // in the bytes that return to the dialling side
  uint64_t at = 0;         // position in the direction's bytes
  int ms = 0;
};

class FaultProxy {
 public:
  // Changes the bytes that came in one direction of a connection before they are passed on.
  using Edit = std::function<void(size_t connection, bool is_answer, std::vector<std::byte>&)>;

  // `target` is "127.0.0.1:port". `plan` gives a connection's fault; `edit` may be null and
  // precedes the plan. Both run on the proxy's thread.
  FaultProxy(std::string target,
             std::function<Fault(size_t connection)> plan,
             Edit edit = nullptr);
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }

  [[nodiscard]] size_t num_connections() const { return num_connections_; }

 private:
  struct Direction;
  struct Pair;

  void run();
  void accept_one();
  void read(Pair& pair, Direction& direction);
  void move_bytes(Pair& pair, Direction& direction);
  static void cut(Pair& pair);

  const std::string target_;
  const std::function<Fault(size_t)> plan_;
  const Edit edit_;
  std::string address_;
  int listener_ = -1;
  std::atomic<size_t> num_connections_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::thread thread_;
};

}  // namespace sluice::test
