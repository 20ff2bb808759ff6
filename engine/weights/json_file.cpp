// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/json_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/mapped_file.h"

namespace sluice {

tl::unexpected<Error> wrong_in_file(const std::string& file,
                                    const std::string& field,
                                    const std::string& found,
                                    const std::string& expected) {
  return make_error(ErrorCode::kUnsupported,
                    file + ": " + field + ": found " + found + ", expected " + expected);
}

Expected<nlohmann::json> read_json_file(const std::string& path) {
  constexpr size_t kMaxFileBytes = 1 << 20;
  using Json = nlohmann::json;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return Json();
  SLUICE_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxFileBytes) return wrong_in_file(path, "size", "more than 1 MiB", "less");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  int depth_found = 0;
  const auto watch = [&depth_found](int depth, Json::parse_event_t, Json&) {
    depth_found = std::max(depth_found, depth);
    return depth <= kMaxJsonLevels;
  };
  Json json = Json::parse(json_without_nan(text, path), watch, /*allow_exceptions=*/false);
  if (json.is_discarded() || depth_found > kMaxJsonLevels) {
    return wrong_in_file(path, "file", "no JSON", "JSON");
  }
  return json;
}

}  // namespace sluice
