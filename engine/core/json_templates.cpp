// SPDX-License-Identifier: Apache-2.0
#include "engine/core/json_templates.h"

template class std::vector<nlohmann::json>;
template class std::map<std::string, nlohmann::json, std::less<>>;
template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
