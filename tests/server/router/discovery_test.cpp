// SPDX-License-Identifier: Apache-2.0
#include "server/router/discovery.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // setenv

#include <condition_variable>
#include <mutex>

#include "server/http/socket_name.h"
#include "server/router/discovery_kubernetes.h"

namespace sluice {
namespace {

using Addresses = std::vector<std::string>;

// What a sink got, from any thread.
class Heard {
 public:
  AddressSink sink() {
    return [this](Addresses found) {
      const std::scoped_lock lock(mutex_);
      all_.push_back(std::move(found));
      changed_.notify_all();
    };
  }

  bool waits_for(const Addresses& wanted) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(
        lock, std::chrono::seconds(60), [&] { return !all_.empty() && all_.back() == wanted; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Addresses> all_;
};

TEST(SocketName, HostAndPortAndNothingElse) {
  EXPECT_EQ(parse_socket_name("a.b:80"), (SocketName{"a.b", 80}));
  EXPECT_EQ(parse_socket_name("[::1]:0"), (SocketName{"::1", 0}));
  EXPECT_EQ(text_of(SocketName{"::1", 7}), "[::1]:7");
  EXPECT_EQ(text_of(SocketName{"h", 7}), "h:7");
  for (const char* text :
       {"", "a", "a:", ":80", "a:b", "a:-1", "a:65536", "::1:80", "[]:1", "a:8 "}) {
    EXPECT_FALSE(parse_socket_name(text)) << text;
  }
}

TEST(SocketName, LoopbackIsThisMachineAlone) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0",
                           "::",
                           "::2",
                           "::ffff:10.0.0.1",
                           "10.0.0.1",
                           "127.0.0.1.example.org",
                           "localhost.org"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

TEST(Discovery, AddressesThatAreNamedComeAtOnceSortedAndOnce) {
  Heard heard;
  const auto discovery = Discovery::create({"b:2", "a:1", "b:2", "[::1]:3"}, heard.sink());
  ASSERT_TRUE(discovery);
  (*discovery)->begin();
  EXPECT_TRUE(heard.waits_for({"[::1]:3", "a:1", "b:2"}));
}

TEST(Discovery, ANameIsResolvedAndJoinsTheOthers) {
  Heard heard;
  const auto discovery = Discovery::create({"dns:127.0.0.1:9", "a:1"}, heard.sink());
  ASSERT_TRUE(discovery);
  (*discovery)->begin();
  EXPECT_TRUE(heard.waits_for({"127.0.0.1:9", "a:1"}));
}

TEST(Discovery, WhatIsNoPlaceIsRefusedByName) {
  for (const char* item : {"", "a", "a:0", "dns:a", "dns:a:0", "k8s:a", "k8s:a/b:0", "k8s:A/b:1"}) {
    const auto made = Discovery::create({item}, [](const Addresses&) {});
    ASSERT_FALSE(made) << item;
    EXPECT_EQ(made.error().param, "workers");
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_FALSE(Discovery::create({}, [](const Addresses&) {}));
}

std::string slice(const std::string& name,
                  const std::string& version,
                  const std::string& endpoints) {
  return R"({"metadata":{"name":")" + name + R"(","resourceVersion":")" + version +
         R"("},"ports":[{"name":"w","port":8100}],"endpoints":[)" + endpoints + "]}";
}

std::string endpoint(const std::string& address, const std::string& conditions = {}) {
  return R"({"addresses":[")" + address + R"("],"conditions":{)" + conditions + "}}";
}

std::string list_of(const std::string& version, const std::string& items) {
  return R"({"kind":"EndpointSliceList","metadata":{"resourceVersion":")" + version +
         R"("},"items":[)" + items + "]}";
}

std::string event(const std::string& type, const std::string& object) {
  return R"({"type":")" + type + R"(","object":)" + object + "}";
}

TEST(EndpointSlices, ReadyEndpointsOfAllSlicesCount) {
  EndpointSlices slices(0);
  ASSERT_TRUE(slices.take_list(list_of(
      "5",
      slice("a", "4", endpoint("10.0.0.2") + "," + endpoint("10.0.0.1", R"("ready":true)")) + "," +
          slice("b",
                "5",
                endpoint("10.0.0.3", R"("ready":false)") + "," +
                    endpoint("10.0.0.4", R"("ready":true,"terminating":true)") + "," +
                    endpoint("fd00::1")))));
  EXPECT_EQ(slices.addresses(), (Addresses{"10.0.0.1:8100", "10.0.0.2:8100", "[fd00::1]:8100"}));
  EXPECT_EQ(slices.version(), "5");
}

TEST(EndpointSlices, EventsChangeOneSlice) {
  EndpointSlices slices(9000);  // in place of the slices' own port
  ASSERT_TRUE(slices.take_list(list_of("5", slice("a", "4", endpoint("10.0.0.1")))));
  ASSERT_TRUE(slices.take_event(event("ADDED", slice("b", "6", endpoint("10.0.0.2")))));
  EXPECT_EQ(slices.addresses(), (Addresses{"10.0.0.1:9000", "10.0.0.2:9000"}));
  ASSERT_TRUE(slices.take_event(event("MODIFIED", slice("a", "7", endpoint("10.0.0.3")))));
  EXPECT_EQ(slices.addresses(), (Addresses{"10.0.0.2:9000", "10.0.0.3:9000"}));
  ASSERT_TRUE(slices.take_event(event("DELETED", slice("b", "8", ""))));
  EXPECT_EQ(slices.addresses(), (Addresses{"10.0.0.3:9000"}));
  ASSERT_TRUE(slices.take_event(event("BOOKMARK", R"({"metadata":{"resourceVersion":"12"}})")));
  EXPECT_EQ(slices.version(), "12");
  EXPECT_EQ(slices.addresses(), (Addresses{"10.0.0.3:9000"}));
}

TEST(EndpointSlices, AListThatIsTooOldAndWhatIsNoJsonAreErrors) {
  EndpointSlices slices(0);
  EXPECT_FALSE(slices.take_event(event("ERROR", R"({"code":410})")));
  EXPECT_FALSE(slices.take_event("{"));
  EXPECT_FALSE(slices.take_event("[]"));
  EXPECT_FALSE(slices.take_list("[]"));
  EXPECT_FALSE(slices.take_list(R"({"items":3})"));
  for (const char* odd :
       {R"({"metadata":3})",
        R"({"ports":[],"endpoints":[{}]})",
        R"({"ports":[{"port":"x"}],"endpoints":[{"addresses":["a"]}]})",
        R"({"ports":[{"port":70000}],"endpoints":[{"addresses":["a"]}]})",
        R"({"ports":[{"port":1}],"endpoints":[{"addresses":[3]},{"addresses":[]}]})",
        R"({"ports":[{"port":1}],"endpoints":{"a":1}})"}) {
    EXPECT_TRUE(slices.take_list(list_of("1", odd))) << odd;
    EXPECT_EQ(slices.addresses(), Addresses{}) << odd;
  }
}

}  // namespace
}  // namespace sluice
