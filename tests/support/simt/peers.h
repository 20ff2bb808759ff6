// SPDX-License-Identifier: Apache-2.0
// Memory that devices use at the same time, each with a thread of the host that runs its launches.
// Nothing orders them but ptx::tell_peer and ptx::wait_for_peer: in race mode a thread may read
// what another device's has written, and write what it has read, if that was in front of what the
// other one told, and if it, or a thread that it has met since, waited for that. What a device
// learns from a second one of a third is not counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/support/simt/race.h"

namespace sluice::simt {

// Declares such memory, in multiples of 4 bytes, for its lifetime.
class PeerMemory {
 public:
  PeerMemory(const void* begin, int64_t bytes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

 private:
  const std::byte* begin_;
};

// What the devices did to all PeerMemory. Any thread.
class PeerShadow {
 public:
  // The calling thread's device begins a launch behind its earlier ones.
  static void begin_launch();

  // A thread of the running launch, whose knowledge is `clock`, tells a number.
  void tell(const uint32_t* word, uint32_t number, const Clock& clock);
  // A thread has seen the number there, at a time on its clock.
  void see(const uint32_t* word, uint32_t number, int agent, uint32_t time);

  // Notes an access by a thread with this knowledge; returns the name of its race, or null.
  const char* access(const void* p, int64_t bytes, bool is_write, int agent, const Clock& clock);

 private:
  friend class PeerMemory;

  struct Access {
    int device = -1;  // none
    int64_t launch = 0;
    int agent = 0;
    uint32_t time = 0;
  };

  struct Word {
    Access write;
    std::vector<Access> reads;  // since then, the last of each device
  };

  struct Told {
    uint32_t number;
    int device;
    int64_t launch;
    Clock clock;
  };

  // What a thread of a launch knows since a time, and every thread of later ones.
  struct Seen {
    int64_t launch;
    int agent;
    uint32_t time;
    Told told;
  };

  // One per thread of the host.
  struct Device {
    int number;
    int64_t launch = 0;
    std::vector<Seen> seen;
  };

  static Device& own();
  static bool knows(const Access& access, const Clock& clock);

  std::atomic<bool> has_ranges_ = false;
  std::mutex mutex_;
  std::map<const std::byte*, int64_t> ranges_;               // guarded by mutex_
  std::unordered_map<uintptr_t, Word> words_;                // guarded by mutex_
  std::unordered_map<const void*, std::vector<Told>> told_;  // guarded by mutex_
};

PeerShadow& peer_shadow();

}  // namespace sluice::simt
