// SPDX-License-Identifier: Apache-2.0
#include "engine/models/model.h"

#include "engine/parallel/parallel.h"
#include "kvcache/store/kv_storage.h"

namespace sluice {

bool ForwardContext::has_failed() const {
  return (communicator != nullptr && communicator->has_failed()) ||
         (stages != nullptr && stages->has_failed());
}

std::vector<LayerCache> layer_caches(std::span<const LayerGroup> groups, const KvStorage& storage) {
  std::vector<LayerCache> caches;
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<int32_t>& layers = groups[group].layers;
    for (size_t place = 0; place < layers.size(); ++place) {
      const auto layer = static_cast<size_t>(layers[place]);
      if (caches.size() <= layer) caches.resize(layer + 1);
      caches[layer] = {
          .group = static_cast<int32_t>(group),
          .planes = storage.planes(static_cast<int32_t>(group), static_cast<int32_t>(place))};
    }
  }
  for (const LayerGroup& group : groups) {
    for (const auto& [reader, from] : group.readers) {
      const auto layer = static_cast<size_t>(reader);
      if (caches.size() <= layer) caches.resize(layer + 1);
      caches[layer] = caches[static_cast<size_t>(from)];
    }
  }
  return caches;
}

}  // namespace sluice
