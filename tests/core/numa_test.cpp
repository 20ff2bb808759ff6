// SPDX-License-Identifier: Apache-2.0
#include "engine/core/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "tests/support/fake_root.h"

namespace sluice {
namespace {

using testing::FakeRoot;
using Ids = std::vector<int32_t>;

// CPUs of the affinity mask, as many as the machine has below 1024.
Ids own_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  Ids cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<NumaNode> two_nodes() {
  return {{.id = 0, .cpus = {0, 1, 2}}, {.id = 3, .cpus = {8, 9}}};
}

TEST(IdList, ReadsWhatTheKernelWrites) {
  EXPECT_EQ(parse_id_list("0"), Ids({0}));
  EXPECT_EQ(parse_id_list("0-3\n"), Ids({0, 1, 2, 3}));
  EXPECT_EQ(parse_id_list("\t1,4-5,4095"), Ids({1, 4, 5, 4095}));
}

TEST(IdList, RefusesEverythingElse) {
  for (const char* text : {"",
                           " ",
                           "a",
                           "-1",
                           "1-",
                           "3-1",
                           "1,",
                           ",1",
                           "1,,2",
                           "1 2",
                           "2,1",
                           "1,1",
                           "0-4096",
                           "4096",
                           "99999999999",
                           "0-99999999999",
                           "1-2-3",
                           "0x1"}) {
    EXPECT_TRUE(parse_id_list(text).empty()) << text;
  }
}

TEST(NumaNodes, AreThoseWithCpusOfThisProcess) {
  const Ids cpus = own_cpus();
  ASSERT_FALSE(cpus.empty());
  FakeRoot root;
  const std::string folder = "/sys/devices/system/node/";
  root.with(folder + "online", "0,2-3\n")
      .with(folder + "node0/cpulist", "4000-4002\n")  // no CPU of ours
      .with(folder + "node2/cpulist", std::to_string(cpus.front()) + "\n")
      .with(folder + "node3/cpulist", "\n")  // memory only
      .with("/proc/self/status", "Name:\tx\nMems_allowed_list:\t0,3\n");
  const std::vector<NumaNode> nodes = numa_nodes(root.path());
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].id, 2);
  EXPECT_EQ(nodes[0].cpus, Ids({cpus.front()}));
  EXPECT_FALSE(nodes[0].has_memory);
}

TEST(NumaNodes, AreOneWhereTheSystemSaysNothing) {
  const FakeRoot root;
  const std::vector<NumaNode> nodes = numa_nodes(root.path());
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].cpus, own_cpus());
  EXPECT_TRUE(nodes[0].has_memory);
}

TEST(NumaNodes, OfThisMachineHaveAllCpusOfTheMask) {
  EXPECT_EQ(static_cast<size_t>(make_placement(NumaMode::kOff, false).num_cpus()),
            own_cpus().size());
}

TEST(Placement, OffLeavesThreadsAlone) {
  const Placement placement = make_placement(NumaMode::kOff, false, two_nodes(), 0);
  EXPECT_EQ(placement.num_cpus(), 5);
  for (int32_t worker = 0; worker < 7; ++worker) EXPECT_TRUE(placement.cpus_of(worker).empty());
  EXPECT_EQ(placement.describe(), "as the system does on 2 NUMA nodes");
}

TEST(Placement, StrictGivesEachThreadACpuAndThenAgain) {
  const Placement placement = make_placement(NumaMode::kOff, true, two_nodes(), 0);
  Ids cpus;
  for (int32_t worker = 0; worker < 6; ++worker) {
    ASSERT_EQ(placement.cpus_of(worker).size(), 1U);
    cpus.push_back(placement.cpus_of(worker)[0]);
  }
  EXPECT_EQ(cpus, Ids({0, 1, 2, 8, 9, 0}));
}

TEST(Placement, DistributeTakesTheNodesInTurn) {
  Placement placement = make_placement(NumaMode::kDistribute, false, two_nodes(), 0);
  EXPECT_EQ(placement.cpus_of(0), Ids({0, 1, 2}));
  EXPECT_EQ(placement.cpus_of(1), Ids({8, 9}));
  EXPECT_EQ(placement.cpus_of(2), Ids({0, 1, 2}));
  placement = make_placement(NumaMode::kDistribute, true, two_nodes(), 0);
  std::set<int32_t> cpus;
  for (int32_t worker = 0; worker < 4; ++worker) cpus.insert(placement.cpus_of(worker).at(0));
  EXPECT_EQ(cpus, std::set<int32_t>({0, 1, 8, 9}));
  EXPECT_EQ(placement.describe(), "distributed over 2 NUMA nodes, threads pinned");
}

TEST(Placement, IsolateStaysOnTheNodeOfTheCaller) {
  const Placement placement = make_placement(NumaMode::kIsolate, false, two_nodes(), 9);
  EXPECT_EQ(placement.num_cpus(), 2);
  EXPECT_EQ(placement.cpus_of(5), Ids({8, 9}));
  EXPECT_EQ(placement.describe(), "on NUMA node 3");
  EXPECT_EQ(make_placement(NumaMode::kIsolate, false, two_nodes(), 77).nodes[0].id, 0);
}

TEST(Placement, SharesAreNodesWhereTheyDivideAndElseCpusOfEach) {
  const Placement whole = make_placement(NumaMode::kDistribute, false, two_nodes(), 0);
  EXPECT_EQ(whole.share(0, 1).cpus_of(1), whole.cpus_of(1));
  EXPECT_EQ(whole.share(0, 2).cpus_of(0), Ids({0, 1, 2}));
  EXPECT_EQ(whole.share(0, 2).cpus_of(1), Ids({0, 1, 2}));
  EXPECT_EQ(whole.share(1, 2).cpus_of(0), Ids({8, 9}));
  const Placement strict = make_placement(NumaMode::kOff, true, two_nodes(), 0);
  std::set<int32_t> cpus;
  for (int32_t rank = 0; rank < 2; ++rank) {
    for (int32_t worker = 0; worker < 2; ++worker) {
      cpus.insert(strict.share(rank, 2).cpus_of(worker).at(0));
    }
  }
  EXPECT_EQ(cpus.size(), 4U);
  // More ranks than CPUs of a node: they share them.
  EXPECT_EQ(strict.share(7, 8).num_cpus(), 5);
}

// The policy that the kernel has for an address; -1: it does not say.
int policy_of(const std::byte* address) {
  int policy = -1;
  const long failed = syscall(SYS_get_mempolicy, &policy, nullptr, 0, address, MPOL_F_ADDR);
  return failed == 0 ? policy : -1;
}

TEST(BindMemory, TheKernelHasThePolicy) {
  auto buffer = AlignedBuffer::allocate(1 << 20, "test");
  ASSERT_TRUE(buffer.has_value());
  if (policy_of(buffer->data()) < 0) GTEST_SKIP() << "get_mempolicy is not allowed here";
  ASSERT_TRUE(bind_memory(buffer->span(), make_placement(NumaMode::kOff, false)));
  EXPECT_EQ(policy_of(buffer->data()), MPOL_DEFAULT);
  ASSERT_TRUE(bind_memory(buffer->span(), make_placement(NumaMode::kDistribute, false)));
  EXPECT_EQ(policy_of(buffer->data()), MPOL_INTERLEAVE);
  EXPECT_EQ(policy_of(buffer->data() + buffer->size() - 1), MPOL_INTERLEAVE);
  ASSERT_TRUE(bind_memory(buffer->span(), make_placement(NumaMode::kIsolate, false)));
  EXPECT_EQ(policy_of(buffer->data()), MPOL_PREFERRED);
  buffer->data()[0] = std::byte{1};
}

TEST(BindMemory, NodesThatThereAreNotAreRefusedByTheSystem) {
  auto buffer = AlignedBuffer::allocate(1 << 20, "test");
  ASSERT_TRUE(buffer.has_value());
  Placement placement{.mode = NumaMode::kDistribute, .nodes = {{.id = 1000, .cpus = {0}}}};
  EXPECT_FALSE(bind_memory(buffer->span(), placement));
  placement.nodes[0].has_memory = false;
  EXPECT_TRUE(bind_memory(buffer->span(), placement));
}

TEST(BindThread, TakesItsCpus) {
  const Ids cpus = own_cpus();
  std::thread([&cpus] {
    EXPECT_TRUE(bind_thread({}));
    EXPECT_EQ(own_cpus(), cpus);
    EXPECT_TRUE(bind_thread({cpus.back()}));
    EXPECT_EQ(own_cpus(), Ids({cpus.back()}));
    EXPECT_EQ(sched_getcpu(), cpus.back());
  }).join();
}

TEST(AlignedBuffer, ReservedPagesAreThereOrRefusedInOneLine) {
  const auto buffer =
      AlignedBuffer::allocate((3 << 20) + 5, "weights", AlignedBuffer::Pages::kReserved);
  if (!buffer) {
    EXPECT_EQ(buffer.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(buffer.error().message.find("vm.nr_hugepages"), std::string::npos);
    return;
  }
  EXPECT_EQ(buffer->size(), static_cast<size_t>(3 << 20) + 5);
  for (std::byte& byte : buffer->span()) byte = std::byte{1};
}

}  // namespace
}  // namespace sluice
