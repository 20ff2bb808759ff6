// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_memory.h"

namespace sluice::kernels {

Expected<DeviceBuffer> DeviceBuffer::allocate(DeviceMemory* memory,
                                              int64_t bytes,
                                              const char* purpose,
                                              AlignedBuffer::Pages pages) {
  if (memory == nullptr) {
    SLUICE_TRY(AlignedBuffer host, AlignedBuffer::allocate(bytes, purpose, pages));
    return DeviceBuffer(std::move(host));
  }
  DeviceBuffer buffer;
  if (bytes <= 0) return buffer;
  SLUICE_TRY(buffer.data_, memory->allocate(bytes, purpose));
  buffer.bytes_ = static_cast<size_t>(bytes);
  buffer.memory_ = memory;
  return buffer;
}

Expected<DeviceBuffer> DeviceBuffer::allocate_pinned(DeviceMemory& memory,
                                                     int64_t bytes,
                                                     const char* purpose) {
  DeviceBuffer buffer;
  if (bytes <= 0) return buffer;
  SLUICE_TRY(buffer.data_, memory.allocate_pinned(bytes, purpose));
  buffer.bytes_ = static_cast<size_t>(bytes);
  buffer.memory_ = &memory;
  buffer.is_pinned_ = true;
  return buffer;
}

}  // namespace sluice::kernels
