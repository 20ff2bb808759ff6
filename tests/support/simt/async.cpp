// SPDX-License-Identifier: Apache-2.0
// mbarriers and the copy engine. Copies happen at any time between their issue and the wait that
// asks for them.
#include "tests/support/simt/async.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/simt/block.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/ptx_simt.h"
#include "tests/support/simt/reach.h"
#include "tests/support/simt/sched.h"
#include "tests/support/simt/swizzle.h"

namespace sluice::simt {
namespace {

using gpu::TensorMap;
using gpu::TensorMapShape;

constexpr uint64_t kMbarrierMark =
    0x51A0CE00'00000000U;  // plus its number: the contents of its 64 bits

// Returns the number of an mbarrier in the block's shared memory that its running thread uses.
int index_of(Block& self, uint64_t* barrier, const char* who, Site site) {
  const Instruction here{who, site};
  self.shared_offset(barrier, sizeof(*barrier), here);
  RaceDetector* const race = self.race();
  if (race != nullptr) {
    const int agent = self.self().agent;
    race->read(agent, RaceDetector::Proxy::kGeneric, barrier, sizeof(*barrier), nullptr);
  }
  const uint64_t index = *barrier - kMbarrierMark;
  if (index >= self.async().barriers.size()) fail(here + ": an mbarrier that is not initialized");
  return static_cast<int>(index);
}

void complete_phase_if_due(Block& block, MbarrierState& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  const uint32_t parity = barrier.phase % 2;
  barrier.done_clock[parity] = std::exchange(barrier.clock, {});
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  for (const int thread : std::exchange(barrier.waiting, {})) block.wake(thread);
}

void arrive(uint64_t* p, int64_t bytes, const char* who, Site site) {
  Block& self = current_block();
  const auto index = static_cast<size_t>(index_of(self, p, who, site));
  MbarrierState& barrier = self.async().barriers[index];
  if (barrier.pending == 0) {
    fail(Instruction{who, site} + ": more arrivals than the " + std::to_string(barrier.arrivals) +
         " of the phase");
  }
  barrier.bytes += bytes;
  --barrier.pending;
  if (RaceDetector* const race = self.race(); race != nullptr) {
    race->release(self.self().agent, barrier.clock);
  }
  complete_phase_if_due(self, barrier);
}

void wait_phase(uint64_t* p, int parity, Site site) {
  constexpr const char* kWho = "mbar_wait";
  Block& self = current_block();
  const auto index = static_cast<size_t>(index_of(self, p, kWho, site));
  std::vector<MbarrierState>& barriers = self.async().barriers;
  // The vector may grow meanwhile, so no reference is kept.
  while (static_cast<int>(barriers[index].phase % 2) == parity) {
    barriers[index].waiting.push_back(self.self().index);
    self.wait(kWho, site);
  }
  RaceDetector* const race = self.race();
  if (race != nullptr) race->acquire(self.self().agent, barriers[index].done_clock[parity]);
}

TensorMapShape shape_of(const TensorMap& map) {
  TensorMapShape shape;
  std::memcpy(static_cast<void*>(&shape), &map, sizeof(shape));
  return shape;
}

// Copies the box, row by row of its innermost dimension. `early`: issued before wait_for_launches.
void copy(std::byte* to, const TensorMapShape& shape, const int32_t (&at)[4], bool early) {
  int64_t box[4];
  for (int i = 0; i < 4; ++i) box[i] = i < shape.rank ? shape.box[i] : 1;
  const int64_t inner = box[0] * shape.element_bytes;
  auto* const arena = current_block().arena();
  const int64_t base = to - arena;
  for (int64_t row = 0; row < box[1] * box[2] * box[3]; ++row) {
    const int64_t index[4] = {at[0],
                              at[1] + row % box[1],
                              at[2] + row / box[1] % box[2],
                              at[3] + row / (box[1] * box[2])};
    bool inside = true;
    const auto* from = static_cast<const std::byte*>(shape.data);
    for (int i = 1; i < shape.rank; ++i) {
      inside = inside && index[i] >= 0 && index[i] < shape.sizes[i];
      from += index[i] * shape.strides[i];
    }
    for (int64_t i = 0; i < box[0]; ++i) {
      const int64_t column = index[0] + i;
      const int64_t offset = swizzled(base + row * inner + i * shape.element_bytes, shape.swizzle);
      if (inside && column >= 0 && column < shape.sizes[0]) {
        const std::byte* const element = from + column * shape.element_bytes;
        check_reach(element, shape.element_bytes, {"a tensor copy"}, nullptr);
        if (early) check_early_read(element, shape.element_bytes, nullptr);
        std::memcpy(arena + offset, element, static_cast<size_t>(shape.element_bytes));
      } else {
        std::memset(arena + offset, 0, static_cast<size_t>(shape.element_bytes));
      }
    }
  }
}

struct BoxCopy {
  TensorMapShape shape;
  int32_t at[4];
  int64_t bytes;
  int64_t offset;  // target's offset in shared memory
  bool early;      // issued before wait_for_launches
};

// Starts a copy by the block's running thread that the mbarrier of this number counts.
void start_copy(Block& self, int index, const BoxCopy& box) {
  Clock clock;
  RaceDetector* const race = self.race();
  if (race != nullptr) {
    clock = race->empty_clock();
    race->add_to(clock, self.self().agent);
  }
  self.start_async([=, &self] {
    std::byte* const target = self.arena() + box.offset;
    MbarrierState& counter = self.async().barriers[static_cast<size_t>(index)];
    if (race != nullptr) {
      const int agent = race->mbarrier_unit(self.rank(), index);
      race->begin(agent, clock);
      race->write(agent, RaceDetector::Proxy::kAsync, target, box.bytes, nullptr);
      race->release(agent, counter.clock);
    }
    copy(target, box.shape, box.at, box.early);
    counter.bytes -= box.bytes;
    complete_phase_if_due(self, counter);
  });
}

}  // namespace

void check_hopper(const char* who, Site site) {
  const int capability = gpu::compute_capability();
  if (capability == 90) return;
  fail(std::string(who) + " at " + describe(site) + ": not on a device of " +
       std::to_string(capability));
}

AsyncState::AsyncState(int num_threads)
    : units(static_cast<size_t>((num_threads + 31) / 32)),
      copies(static_cast<size_t>(num_threads)),
      ordered(static_cast<size_t>(num_threads)) {}

void AsyncState::check_end() const {
  for (size_t warp = 0; warp < units.size(); ++warp) {
    if (units[warp].accumulators.empty()) continue;
    add_report("wgmma of warp " + std::to_string(warp) + ": the kernel ended before wgmma_wait");
    break;
  }
  for (size_t warp = 0; warp < units.size(); ++warp) {
    const size_t first = warp / 4 * 4;
    if (units[warp].issued == units[first].issued && first + 4 <= units.size()) continue;
    if (units[warp].issued == 0 && units[first].issued == 0) continue;
    add_report("wgmma by a part of the warpgroup of warp " + std::to_string(warp));
    break;
  }
  for (size_t thread = 0; thread < copies.size(); ++thread) {
    if (copies[thread].latest <= copies[thread].waited) continue;
    add_report("cp.async of thread " + std::to_string(thread) +
               ": the kernel ended before cp_async_wait");
    break;
  }
  RaceDetector* const race = current_block().race();
  if (race == nullptr) return;
  const int rank = current_block().rank();
  for (size_t i = 0; i < barriers.size(); ++i) {
    if (race->anyone_saw_all_of(race->mbarrier_unit(rank, static_cast<int>(i)))) continue;
    add_report("mbarrier " + std::to_string(i) +
               ": the kernel ended and nobody had waited for a copy");
    break;
  }
}

void copy_box(
    void* to, const TensorMap& map, const int32_t (&at)[4], uint64_t* barrier, Site site) {
  constexpr const char* kWho = "tma_load";
  check_hopper(kWho, site);
  const Instruction here{kWho, site};
  BoxCopy box{.shape = shape_of(map),
              .at = {at[0], at[1], at[2], at[3]},
              .bytes = 0,
              .offset = 0,
              .early = !current_block().self().waited_for_launches};
  box.bytes = box.shape.element_bytes;
  for (int i = 0; i < box.shape.rank; ++i) box.bytes *= box.shape.box[i];
  Block& self = current_block();
  box.offset = self.shared_offset(to, box.bytes, here);
  const Swizzle swizzle = box.shape.swizzle;
  const int64_t aligned = swizzle == Swizzle::kNone ? 128 : 8 * row_bytes(swizzle);
  if (box.offset % std::max<int64_t>(aligned, 128) != 0) {
    fail(here + ": a target that is not aligned");
  }
  const int index = index_of(self, barrier, kWho, site);
  if (!self.async().barriers[static_cast<size_t>(index)].published) {
    fail(here + ": an mbarrier whose init no fence_mbar_init follows");
  }
  start_copy(self, index, box);
}

}  // namespace sluice::simt

namespace sluice::gpu {

TensorMap make_tensor_map(const TensorMapShape& shape) {
  const int64_t inner = int64_t{shape.box[0]} * shape.element_bytes;
  bool good = reinterpret_cast<uintptr_t>(shape.data) % 16 == 0 && shape.rank >= 2 &&
              shape.rank <= 4 && inner % 16 == 0;
  // Rows of a narrower box would not lie side by side on a GPU.
  if (shape.swizzle != Swizzle::kNone) good = good && inner == simt::row_bytes(shape.swizzle);
  for (int i = 0; i < shape.rank; ++i) {
    good = good && shape.sizes[i] > 0 && shape.box[i] > 0 && shape.box[i] <= 256;
    if (i > 0) good = good && shape.strides[i] % 16 == 0;
  }
  if (!good) simt::add_report("make_tensor_map: a shape that the copy engine refuses");
  TensorMap map{};
  static_assert(sizeof(shape) <= sizeof(map));
  std::memcpy(&map, &shape, sizeof(shape));
  return map;
}

namespace ptx {

using simt::current_block;

uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(current_block().shared_offset(p, 1, {"shared_address"}));
}

void mbar_init(uint64_t* barrier, int arrivals, simt::Site site) {
  const simt::Instruction here{"mbar_init", site};
  simt::Block& block = current_block();
  const int64_t offset = block.shared_offset(barrier, sizeof(*barrier), here);
  std::vector<simt::MbarrierState>& all = block.async().barriers;
  if (offset % 8 != 0 || arrivals < 1) simt::fail(here + ": not aligned, or no arrivals");
  if (*barrier - simt::kMbarrierMark < all.size()) simt::fail(here + ": initialized before");
  if (all.size() == simt::RaceDetector::kMaxMbarriers) simt::fail(here + ": too many mbarriers");
  simt::RaceDetector* const race = block.race();
  if (race != nullptr) {
    race->write(block.self().agent,
                simt::RaceDetector::Proxy::kGeneric,
                barrier,
                sizeof(*barrier),
                nullptr);
  }
  *barrier = simt::kMbarrierMark + all.size();
  simt::MbarrierState& state = all.emplace_back();
  state.arrivals = arrivals;
  state.owner = block.self().index;
  state.pending = arrivals;
}

void fence_mbar_init() {
  const int self = current_block().self().index;
  for (simt::MbarrierState& barrier : current_block().async().barriers) {
    barrier.published = barrier.published || barrier.owner == self;
  }
}

void fence_proxy_async() {
  fence_mbar_init();
  simt::RaceDetector* const race = current_block().race();
  if (race != nullptr) race->proxy_fence(current_block().self().agent);
}

void fence_device() {
  simt::RaceDetector* const race = current_block().race();
  if (race != nullptr) race->device_fence(current_block().self().agent);
}

void mbar_arrive(uint64_t* barrier, simt::Site site) {
  simt::arrive(barrier, 0, "mbar_arrive", site);
}

void mbar_arrive_expect_tx(uint64_t* barrier, uint32_t bytes, simt::Site site) {
  simt::arrive(barrier, bytes, "mbar_arrive_expect_tx", site);
}

void mbar_wait(uint64_t* barrier, int parity, simt::Site site) {
  simt::wait_phase(barrier, parity, site);
}

}  // namespace ptx
}  // namespace sluice::gpu
