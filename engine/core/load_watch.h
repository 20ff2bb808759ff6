// SPDX-License-Identifier: Apache-2.0
// How far the loading of weights is, for the one in this process who shows it; like the log, it is
// the process's own. Without a watcher large models say so in the log.
#pragma once

#include <cstdint>
#include <functional>

namespace sluice {

// Bytes of weights that are where kernels read them, of all. Called by the loading thread, of
// several ranks by each with its own bytes, one call at a time.
using LoadWatcher = std::function<void(int64_t done, int64_t all)>;

// Any thread; empty: nobody watches. When it returns, the watcher before is called no more.
void watch_loading(LoadWatcher watcher);

// The last call of a loading has done == all. False: nobody watches.
bool tell_loading(int64_t done, int64_t all);

}  // namespace sluice
