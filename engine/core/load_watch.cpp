// SPDX-License-Identifier: Apache-2.0
#include "engine/core/load_watch.h"

#include <mutex>
#include <utility>

namespace sluice {
namespace {

std::mutex g_mutex;
LoadWatcher g_watcher;  // guarded by g_mutex

}  // namespace

void watch_loading(LoadWatcher watcher) {
  const std::scoped_lock lock(g_mutex);
  g_watcher = std::move(watcher);
}

bool tell_loading(int64_t done, int64_t all) {
  const std::scoped_lock lock(g_mutex);
  if (!g_watcher) return false;
  g_watcher(done, all);
  return true;
}

}  // namespace sluice
