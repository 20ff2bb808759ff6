// SPDX-License-Identifier: Apache-2.0
#include "engine/models/blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice {

std::byte* Arena::take_bytes(int64_t bytes) {
  std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
  used_ += align_up(bytes, 64);
  if (base_ != nullptr) CHECK_LE(used_, capacity_);
  return piece;
}

namespace {

// Returns whole tiles of the weight, without a copy.
PackedWeight some_rows(PackedWeight weight, const Portion& rows, DeviceType device) {
  if (rows.whole == 0) return weight;
  CHECK_EQ(rows.first % kRowTile, 0);
  const bool in_rows = device == DeviceType::kCuda && has_rows(weight.format);
  const int64_t skipped = in_rows
                              ? rows.first * matrix_row_stride(weight.format, weight.k)
                              : rows.first / kRowTile * packed_tile_bytes(weight.format, weight.k);
  if (weight.data != nullptr) weight.data += skipped;
  weight.n = rows.count;
  return weight;
}

MatrixShare share_of_part(const Portion& rows, const kernels::Segments& segments, int64_t k) {
  MatrixShare share{.first_row = rows.first, .num_rows = rows.whole == 0 ? 0 : rows.count};
  if (segments.are_all()) return share;
  share.first_column = segments.first_column(k);
  share.end_column = segments.end_column(k);
  return share;
}

std::vector<float> some_of(std::vector<float> values, const Portion& rows) {
  if (rows.whole == 0 || values.empty()) return values;
  return {values.begin() + rows.first, values.begin() + rows.first + rows.count};
}

// Rows are quantized once for all parts, by a static scale or by their own.
tl::unexpected<Error> mixed_inputs(const std::string& place, float found, float others) {
  const auto text = [](float scale) {
    return scale > 0 ? std::string("a static scale of its inputs") : std::string("a dynamic one");
  };
  return make_error(ErrorCode::kUnsupported,
                    place + ": found " + text(found) + ", expected " + text(others) +
                        ", as the matrices of the same inputs have");
}

}  // namespace

Projection Projection::with_rows(const Portion& rows) const {
  Projection some = *this;
  for (PackedWeight& weight : some.weights_) {
    CHECK(rows.whole == 0 || device_ == DeviceType::kCpu ||
          matrix_row_scales(weight.format, weight.k) == 0);
    weight = some_rows(weight, rows, device_);
  }
  for (const DeviceFloats& bias : biases_) CHECK(rows.whole == 0 || bias.empty());
  return some;
}

Expected<void> Projection::share_input_scales(const Projection& other, const std::string& place) {
  for (size_t i = 0; i < input_scales_.size(); ++i) {
    const float scale = other.input_scales_[i];
    if (needs_[i] && other.needs_[i] && (input_scales_[i] > 0) != (scale > 0)) {
      return mixed_inputs(place, scale, input_scales_[i]);
    }
    needs_[i] = needs_[i] || other.needs_[i];
    input_scales_[i] = std::max(input_scales_[i], scale);
  }
  if (k_ == 0) k_ = other.k_;
  return {};
}

Expected<Projection> Projection::load(WeightStore& weights,
                                      std::span<const Part> parts,
                                      int64_t k,
                                      int32_t activation_bits,
                                      kernels::Segments segments) {
  Projection projection;
  projection.k_ = static_cast<int32_t>(segments.num_columns(k));
  projection.segments_ = segments;
  projection.device_ = weights.device();
  projection.tap_ = weights.tap();
  for (const Part& part : parts) {
    const MatrixShare share =
        weights.keeps_shares() ? share_of_part(part.rows, segments, k) : MatrixShare{};
    SLUICE_TRY(const PackedWeight weight,
               weights.matrix(part.stem + ".weight", part.n, k, part.slice, share));
    std::vector<float> bias;
    if (part.bias) {
      SLUICE_TRY(bias, weights.bias(part.stem + ".bias", part.n, part.slice));
    }
    projection.biases_.push_back(weights.place(some_of(std::move(bias), part.rows)));
    projection.weights_.push_back(
        weights.keeps_shares() ? weight : some_rows(weight, part.rows, DeviceType::kCpu));
    SLUICE_TRY_VOID(projection.add_format(weights, part, activation_bits));
    SLUICE_TRY_VOID(projection.check_borders(weights, part, k));
    if (projection.tap_ != nullptr) projection.stems_.push_back(part.stem);
  }
  return projection;
}

// Determines the format in which the last weight's inputs are.
Expected<void> Projection::add_format(const WeightStore& weights,
                                      const Part& part,
                                      int32_t activation_bits) {
  constexpr int32_t kFloatBits = 16;  // for float codes that are not multiplied with such codes
  const std::string name = part.stem + ".weight";
  const WeightFormat weight = weights_.back().format;
  const WeightInputs inputs = weights.inputs_of(name);
  const bool is_wider = layout_of(weight).is_e4m3() && inputs.are_floats;
  const int32_t bits = is_wider ? std::max(activation_bits, kFloatBits) : activation_bits;
  const kernels::ActivationFormat format =
      kernels::activation_format(weight, bits, part.floats ? DeviceType::kCpu : weights.device());
  const bool as_experts = part.experts && format == kernels::ActivationFormat::kFloat;
  auto known = as_experts ? kernels::check_float_rows(weights.device(), weight)
                          : kernels::check_activations(weights.device(), weight, format);
  if (!known) {
    Error error = std::move(known).error();
    error.message = weights.place_of(name) + ": " + error.message;
    return tl::unexpected(std::move(error));
  }
  formats_.push_back(format);
  const bool is_needed = std::exchange(needs_[static_cast<size_t>(format)], true);
  const bool takes_scale = format == kernels::ActivationFormat::kInt8Token ||
                           format == kernels::ActivationFormat::kE4M3Token;
  if (takes_scale) {
    float& scale = input_scales_[static_cast<size_t>(format)];
    if (is_needed && (scale > 0) != (inputs.scale > 0)) {
      return mixed_inputs(weights.place_of(name), inputs.scale, scale);
    }
    scale = std::max(scale, inputs.scale);
  }
  return {};
}

// Checks the last weight: scales of 128 input columns must lie within one rank.
Expected<void> Projection::check_borders(const WeightStore& weights,
                                         const Part& part,
                                         int64_t k) const {
  if (segments_.are_all() || formats_.back() != kernels::ActivationFormat::kE4M3Group) return {};
  const int64_t first = segments_.first_column(k);
  const int64_t end = segments_.end_column(k);
  const auto is_border = [k](int64_t column) {
    return column == k || column % kernels::kE4M3GroupColumns == 0;
  };
  if (is_border(first) && is_border(end)) return {};
  return make_error(
      ErrorCode::kUnsupported,
      weights.place_of(part.stem + ".weight") + ": found columns " + std::to_string(first) +
          " to " + std::to_string(end) + " on a rank, expected multiples of " +
          std::to_string(kernels::kE4M3GroupColumns) + ", for which its inputs have a scale each",
      "tensor-parallel-size");
}

void Projection::show(const kernels::Activations& input) const {
  if (tap_ == nullptr || input.format != kernels::ActivationFormat::kFloat) return;
  tap_->see(stems_,
            {.data = static_cast<const float*>(input.data),
             .stride = align_up(input.k, 32),
             .num_rows = input.num_rows,
             .k = input.k});
}

void number_rows(kernels::DeviceMemory& memory, int32_t* rows, int32_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  memory.upload(reinterpret_cast<std::byte*>(rows),
                reinterpret_cast<const std::byte*>(numbers.data()),
                static_cast<int64_t>(numbers.size() * sizeof(int32_t)));
  memory.wait();
}

LinearInput::LinearInput(std::span<const Projection* const> projections,
                         int32_t max_rows,
                         Arena& arena) {
  for (int i = 0; i < kNumActivationFormats; ++i) {
    const auto format = static_cast<kernels::ActivationFormat>(i);
    bool needed = false;
    for (const Projection* projection : projections) needed |= projection->needs(format);
    if (!needed) continue;
    const int64_t k = projections.front()->k();
    std::byte* buffer = arena.take_bytes(kernels::activation_bytes(format, max_rows, k));
    if (buffer != nullptr) {
      by_format_[static_cast<size_t>(i)] = kernels::carve_activations(format, max_rows, k, buffer);
    }
  }
}

void LinearInput::quantize(const kernels::ExecContext& exec,
                           const Projection& projection,
                           const float* x,
                           int64_t x_stride) const {
  kernels::RowSteps steps;
  add_quantize_steps(projection, x, x_stride, steps);
  kernels::run_row_steps(exec, steps);
}

void LinearInput::add_quantize_steps(const Projection& projection,
                                     const float* x,
                                     int64_t x_stride,
                                     kernels::RowSteps& steps) const {
  fill_for(projection, [&](const kernels::Activations& out) {
    steps.add(kernels::QuantizeArgs{.x = x, .x_stride = x_stride, .out = out});
  });
}

void project(const kernels::ExecContext& exec,
             const Projection& projection,
             const LinearInput& input,
             std::span<const ProjectionOutput> outputs,
             kernels::Epilogue epilogue,
             const kernels::RowSteps* then) {
  constexpr size_t kMaxParts = 6;
  const std::span<const PackedWeight> weights = projection.weights();
  DCHECK(weights.size() == outputs.size() && weights.size() <= kMaxParts);
  int last = kNumActivationFormats - 1;  // the format that is multiplied last
  while (!projection.needs(static_cast<kernels::ActivationFormat>(last))) --last;
  for (int f = 0; f <= last; ++f) {
    const auto format = static_cast<kernels::ActivationFormat>(f);
    if (!projection.needs(format)) continue;
    projection.show(input.in(format));
    std::array<kernels::RowGroup, kMaxParts> groups;
    size_t num_groups = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (projection.format(i) != format) continue;
      groups[num_groups++] = {.weight = &weights[i],
                              .out = outputs[i].data,
                              .out_stride = outputs[i].stride,
                              .bias = projection.bias(i)};
    }
    kernels::linear(exec,
                    {.x = input.in(format),
                     .groups = std::span(groups).first(num_groups),
                     .epilogue = epilogue,
                     .then = f == last ? then : nullptr});
  }
}

}  // namespace sluice
