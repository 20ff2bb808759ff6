// SPDX-License-Identifier: Apache-2.0
// Finds the records of a ZIP archive whose records are stored as they are, as torch.save() writes
// them. Everything is checked before use: records lie inside the file, before its directory, and
// their names are unique. Zip64 is read. Source of method: PKWARE's APPNOTE.TXT 6.3.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// The bytes of each record by its name; both are views of the file. Checksums are not checked.
using ZipRecords = std::map<std::string_view, std::span<const std::byte>>;

// kDataLoss, and kUnsupported for a compressed or encrypted record, with one line
// "file: field: found X, expected Y".
Expected<ZipRecords> read_stored_zip(std::span<const std::byte> file, const std::string& file_name);

}  // namespace sluice
