// SPDX-License-Identifier: Apache-2.0
// Progress of weight loading, for the component of this process that displays it; global to the
// process, like the log. Without a watcher large models report to the log.
#pragma once

#include <cstdint>
#include <functional>

namespace sluice {

// Receives the loaded and total bytes of weights. The loading thread calls it; with several ranks
// each does with its own bytes, one call at a time.
using LoadWatcher = std::function<void(int64_t done, int64_t all)>;

// Any thread; empty: no watcher. The previous watcher is not called after the return.
void watch_loading(LoadWatcher watcher);

// Reports progress; the last call of a load has done == all. False: there is no watcher.
bool tell_loading(int64_t done, int64_t all);

}  // namespace sluice
