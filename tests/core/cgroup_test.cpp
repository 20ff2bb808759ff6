// SPDX-License-Identifier: Apache-2.0
#include "engine/core/cgroup.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/fake_root.h"

namespace sluice {
namespace {

using testing::FakeRoot;

TEST(Cgroup, NothingToReadMeansNoLimit) {
  const FakeRoot root;
  EXPECT_EQ(cgroup_cpus(root.path()), 0);
  EXPECT_EQ(cgroup_available_memory(root.path()), kNoCgroupLimit);
}

TEST(Cgroup, QuotaOfOneAndAHalfCpusIsTwoThreads) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "0::/\n").with("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpus(root.path()), 2);
}

TEST(Cgroup, MaxIsNoLimit) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "0::/\n")
      .with("/sys/fs/cgroup/cpu.max", "max 100000\n")
      .with("/sys/fs/cgroup/memory.max", "max\n")
      .with("/sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(cgroup_cpus(root.path()), 0);
  EXPECT_EQ(cgroup_available_memory(root.path()), kNoCgroupLimit);
}

TEST(Cgroup, TightestOfTheGroupsAboveCounts) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "0::/pods/one/box\n")
      .with("/sys/fs/cgroup/pods/one/box/cpu.max", "800000 100000\n")
      .with("/sys/fs/cgroup/pods/one/cpu.max", "300000 100000\n")
      .with("/sys/fs/cgroup/pods/cpu.max", "max 100000\n")
      .with("/sys/fs/cgroup/pods/one/box/memory.max", "9000\n")
      .with("/sys/fs/cgroup/pods/one/box/memory.current", "1000\n")
      .with("/sys/fs/cgroup/pods/one/memory.max", "10000\n")
      .with("/sys/fs/cgroup/pods/one/memory.current", "4000\n");
  EXPECT_EQ(cgroup_cpus(root.path()), 3);
  EXPECT_EQ(cgroup_available_memory(root.path()), 6000);
}

TEST(Cgroup, WhereItGetsSlowIsALimitToo) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "0::/slice/box\n")
      .with("/sys/fs/cgroup/slice/box/memory.max", "9000\n")
      .with("/sys/fs/cgroup/slice/box/memory.high", "max\n")
      .with("/sys/fs/cgroup/slice/box/memory.current", "1000\n")
      .with("/sys/fs/cgroup/slice/memory.max", "max\n")
      .with("/sys/fs/cgroup/slice/memory.high", "7000\n")
      .with("/sys/fs/cgroup/slice/memory.current", "2000\n");
  EXPECT_EQ(cgroup_available_memory(root.path()), 5000);
}

TEST(Cgroup, GroupHiddenByANamespaceIsTheMountPoint) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "0::/kubepods/pod1234/box\n")
      .with("/sys/fs/cgroup/cpu.max", "50000 100000\n")
      .with("/sys/fs/cgroup/memory.max", "700\n")
      .with("/sys/fs/cgroup/memory.current", "100\n");
  EXPECT_EQ(cgroup_cpus(root.path()), 1);
  EXPECT_EQ(cgroup_available_memory(root.path()), 600);
}

TEST(Cgroup, VersionOneFindsItsController) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "7:cpuset:/other\n5:memory:/mem\n3:cpuacct,cpu:/box\n1:name=x:/\n")
      .with("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000\n")
      .with("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n")
      .with("/sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "1000\n")
      .with("/sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n")
      .with("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
      .with("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
      .with("/sys/fs/cgroup/memory/mem/memory.limit_in_bytes", "4096\n")
      .with("/sys/fs/cgroup/memory/mem/memory.usage_in_bytes", "96\n");
  EXPECT_EQ(cgroup_cpus(root.path()), 3);
  EXPECT_EQ(cgroup_available_memory(root.path()), 4000);
}

TEST(Cgroup, FileCacheThatTheKernelWouldDropCountsAsFree) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "0::/\n")
      .with("/sys/fs/cgroup/memory.max", "1000\n")
      .with("/sys/fs/cgroup/memory.current", "900\n")
      .with("/sys/fs/cgroup/memory.stat", "anon 100\nactive_file 200\ninactive_file 600\n");
  EXPECT_EQ(cgroup_available_memory(root.path()), 700);
}

TEST(Cgroup, UseAboveTheLimitLeavesNothing) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "0::/\n")
      .with("/sys/fs/cgroup/memory.max", "1000\n")
      .with("/sys/fs/cgroup/memory.current", "1200\n");
  EXPECT_EQ(cgroup_available_memory(root.path()), 0);
}

TEST(Cgroup, NonsenseIsNoLimit) {
  FakeRoot root;
  root.with("/proc/self/cgroup", "no colons\n0:\n0::/\n")
      .with("/sys/fs/cgroup/cpu.max", "many few\n")
      .with("/sys/fs/cgroup/memory.max", "12x\n");
  EXPECT_EQ(cgroup_cpus(root.path()), 0);
  EXPECT_EQ(cgroup_available_memory(root.path()), kNoCgroupLimit);
}

}  // namespace
}  // namespace sluice
