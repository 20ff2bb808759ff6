// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/quantize_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>

#include "engine/quantize/allocation.h"
#include "engine/quantize/calibration.h"
#include "engine/quantize/calibration_text.h"
#include "engine/quantize/gguf_output.h"
#include "engine/quantize/gptq.h"
#include "engine/quantize/hf_output.h"
#include "engine/quantize/source_rows.h"
#include "engine/quantize/text_windows.h"
#include "engine/quantize/tokenizer_output.h"
#include "engine/quantize/unfinished.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/gguf_split.h"
#include "kernels/device.h"
#include "quant/repack.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options, const Checkpoint& checkpoint, QuantizePlan plan)
      : options_(options),
        threads_(options.threads > 0
                     ? options.threads
                     : kernels::default_num_threads(make_placement(NumaMode::kOff, false))),
        checkpoint_(checkpoint),
        plan_(std::move(plan)) {
    for (const PlannedTensor& planned : plan_.tensors) {
      all_bytes_ += planned.source.bytes();
    }
  }

  Expected<QuantizeReport> run() {
    // A problem with the text is reported before hours of work.
    std::vector<std::vector<TokenId>> windows;
    if (!options_.evaluate.empty()) {
      SLUICE_TRY(windows, text_windows(checkpoint_, options_.evaluate, kMaxComparedTokens));
    }
    SLUICE_TRY_VOID(calibrate_inputs());
    SLUICE_TRY_VOID(find_largest());
    if (options_.target_bits > 0) SLUICE_TRY_VOID(spend_bits());
    SLUICE_TRY(Unfinished output,
               Unfinished::create(options_.output,
                                  plan_.kind == CheckpointKind::kHuggingFace,
                                  options_.on_unfinished));
    SLUICE_TRY_VOID(write_output(output.path()));
    while (keep_lost()) {
      output.clear();
      SLUICE_TRY_VOID(write_output(output.path()));
    }
    if (options_.verify) SLUICE_TRY_VOID(verify(output.path()));
    if (!windows.empty()) {
      tell(plan_.tensors.size(), "(evaluation)");
      SLUICE_TRY(report_.comparison,
                 compare_models(options_.input, output.path(), windows, threads_));
    }
    SLUICE_TRY_VOID(output.rename());
    return std::move(report_);
  }

 private:
  [[nodiscard]] TensorJob job_of(const PlannedTensor& planned) const {
    const auto found = largest_.find(joined_name(planned.source.name));
    TensorJob job{.source = &planned.source,
                  .target = planned.target,
                  .largest_magnitude = found == largest_.end() ? 0 : found->second};
    std::string_view stem = planned.source.name;
    if (stem.ends_with(kWeight)) stem.remove_suffix(kWeight.size());
    const auto inputs = calibration_.find(stem);
    const int64_t k = planned.source.shape().width;
    if (inputs != calibration_.end() &&
        static_cast<int64_t>(inputs->second->mean_squares.size()) == k) {
      job.inputs = inputs->second.get();
    }
    return job;
  }

  // For 8-bit integers in blocks, nearest rounding costs almost nothing.
  [[nodiscard]] static bool takes_gptq(const Target& target) {
    if (target.kind == TargetKind::kCodes) return true;
    constexpr int32_t kMostBits = 6;
    const PackedLayout& layout = layout_of(target.format);
    return target.kind == TargetKind::kBlocks && layout.is_integer() &&
           layout.code_bits() <= kMostBits;
  }

  // Whether a text improves the scheme enough to be used without being asked for.
  [[nodiscard]] static bool gains_from_text(const Target& target) {
    return target.kind == TargetKind::kCodes && target.spelling != Spelling::kMxfp4 &&
           code_bits(scheme_info(target.encoding.scheme).code) == 4;
  }

  Expected<void> calibrate_inputs() {
    if (!options_.calibrate.empty()) {
      calibration_name_ = "the given text";
      return calibrate_by(options_.calibrate);
    }
    const auto gains = [](const PlannedTensor& each) { return gains_from_text(each.target); };
    if (!options_.calibrate_by_default || !std::ranges::any_of(plan_.tensors, gains)) return {};
    calibration_name_ = "the shipped text of " + std::to_string(calibration_text().size()) + " bytes";
    const Expected<void> done = calibrate_by(std::string(calibration_text()));
    if (done) return {};
    calibration_.clear();
    calibration_name_ = "none, as the shipped text does not work here: " + done.error().message;
    return {};
  }

  Expected<void> calibrate_by(const std::string& text) {
    tell(0, "(calibration)");
    const auto is_gptq = [](const PlannedTensor& planned) { return takes_gptq(planned.target); };
    const bool has_gptq = std::any_of(plan_.tensors.begin(), plan_.tensors.end(), is_gptq);
    SLUICE_TRY(
        calibration_,
        calibrate(options_.input,
                  text,
                  {.products = options_.gptq && has_gptq, .threads = threads_}));
    const bool is_seen = std::ranges::any_of(plan_.tensors, [this](const PlannedTensor& planned) {
      return planned.target.kind != TargetKind::kKept && job_of(planned).inputs != nullptr;
    });
    if (is_seen) return {};
    return make_error(ErrorCode::kUnsupported,
                      options_.input +
                          ": --calibrate: found inputs of no matrix that is quantized, expected "
                          "some: those of experts and of INT8 matrices are not looked at",
                      "calibrate");
  }

  // Matrices with one input are consecutive, so only the last factor is kept.
  void take_gptq(TensorJob& job) {
    if (job.inputs == nullptr || job.inputs->products.empty() || !takes_gptq(job.target)) return;
    constexpr double kDamp = 0.01;
    if (gptq_inputs_ != job.inputs) {
      gptq_ = Gptq::create(*job.inputs, kDamp);
      gptq_inputs_ = job.inputs;
    }
    job.gptq = gptq_ ? &*gptq_ : nullptr;
  }

  // Joined matrices get the same scheme. As far as the calibration knows, errors are measured on
  // outputs, relative to the outputs.
  Expected<void> spend_bits() {
    SLUICE_TRY(const std::vector<TargetScheme> schemes, schemes_of_more_bits(plan_.scheme));
    std::map<std::string, std::vector<PlannedTensor*>> groups;
    double num_weights = 0;
    for (PlannedTensor& planned : plan_.tensors) {
      if (planned.target.spelling == Spelling::kNone) continue;
      groups[budget_name(planned.source.name)].push_back(&planned);
      const TensorRows shape = planned.source.shape();
      num_weights += static_cast<double>(shape.rows * shape.width);
    }
    std::vector<std::vector<Choice>> choices;
    for (const auto& [name, tensors] : groups) {
      tell(0, name);
      choices.emplace_back();
      for (const TargetScheme& scheme : schemes) {
        SLUICE_TRY(const Choice choice, try_scheme(scheme, tensors));
        choices.back().push_back(choice);
      }
    }
    double least_bytes = 0;
    for (const std::vector<Choice>& of_group : choices) least_bytes += of_group.front().bytes;
    const double max_bytes = options_.target_bits * num_weights / 8;
    if (least_bytes > max_bytes) {
      char least[32];
      std::snprintf(least, sizeof(least), "%.3f", std::ceil(8e3 * least_bytes / num_weights) / 1e3);
      return make_error(ErrorCode::kInvalidArgument,
                        "--target-bits: found " + number_text(options_.target_bits) +
                            ", expected " + least + " or more, which " + plan_.scheme.name +
                            " has of these matrices",
                        "target-bits");
    }
    const std::vector<size_t> chosen = allocate_bytes(choices, max_bytes);
    size_t group = 0;
    for (const auto& [name, tensors] : groups) {
      const TargetScheme& scheme = schemes[chosen[group++]];
      for (PlannedTensor* planned : tensors) planned->target = target_for(scheme, *planned);
    }
    forget_spelling();  // with room for 16 bits everywhere
    return {};
  }

  [[nodiscard]] Target target_for(const TargetScheme& scheme, const PlannedTensor& planned) const {
    const int64_t k = planned.source.shape().width;
    return scheme.spelling == Spelling::kGguf || plan_.kind == CheckpointKind::kGguf
               ? gguf_target({.name = scheme.name, .kind = scheme.kind, .format = scheme.format},
                             {.name = {}, .k = k})
               : without_lost_codes(
                     planned.source, plan_.kind, target_of(scheme, k, options_.search));
  }

  Expected<Choice> try_scheme(const TargetScheme& scheme,
                              const std::vector<PlannedTensor*>& tensors) const {
    Choice choice;
    TensorError error;
    for (const PlannedTensor* planned : tensors) {
      TensorJob job = job_of(*planned);
      job.target = target_for(scheme, *planned);
      SLUICE_TRY(const EncodedTensor encoded, encode_tensor(checkpoint_.path(), job, threads_));
      for (const TensorPart& part : encoded.parts) {
        choice.bytes += static_cast<double>(part.bytes.size());
      }
      error.weighed_error += encoded.error.weighed_error;
      error.weighed_weights += encoded.error.weighed_weights;
    }
    choice.error = error.weighed_weights > 0 ? error.weighed_error / error.weighed_weights : 0;
    return choice;
  }

  void tell(size_t done, std::string_view name) const {
    if (!options_.on_progress) return;
    options_.on_progress({done, plan_.tensors.size(), done_bytes_, all_bytes_, name});
  }

  // Finds the largest magnitudes of matrices with a matrix scale, over the matrices joined with
  // them.
  Expected<void> find_largest() {
    for (const PlannedTensor& planned : plan_.tensors) {
      const bool has_one = planned.target.kind == TargetKind::kCodes &&
                           scheme_info(planned.target.encoding.scheme).has_matrix_scale();
      if (!has_one) continue;
      SLUICE_TRY(const float largest,
                 largest_magnitude(checkpoint_.path(), planned.source, threads_));
      float& all = largest_[joined_name(planned.source.name)];
      all = std::max(all, largest);
    }
    return {};
  }

  Expected<void> write_output(const std::string& path) {
    report_ = {};
    report_.calibration = calibration_name_;
    done_bytes_ = 0;
    if (plan_.kind != CheckpointKind::kGguf) return write_directory(path);
    SLUICE_TRY(GgufMetadata metadata, output_metadata());
    SLUICE_TRY(GgufWriter writer, GgufWriter::create(std::move(metadata), path, plan_));
    SLUICE_TRY_VOID(write_tensors(writer));
    return writer.finish();
  }

  // Keeps tensors that lost most of their weights, which are beyond the range of the format's
  // scales. Returns whether there are any; the output has to be written again.
  bool keep_lost() {
    constexpr double kMostLost = 0.5;
    bool has_any = false;
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      PlannedTensor& planned = plan_.tensors[i];
      const bool is_coded = planned.target.kind == TargetKind::kCodes ||
                            (planned.target.kind == TargetKind::kBlocks &&
                             layout_of(planned.target.format).is_integer());
      if (!is_coded || report_.tensors[i].error.relative() <= kMostLost) continue;
      has_any = true;
      planned.target = without_lost_codes(
          planned.source,
          plan_.kind,
          {.name = "kept: weights beyond the range of " + planned.target.name + "'s scales"});
    }
    if (has_any) forget_spelling();
    return has_any;
  }

  // Without codes there are none to describe in a configuration.
  void forget_spelling() {
    const bool has_codes = std::ranges::any_of(plan_.tensors, [](const PlannedTensor& planned) {
      return planned.target.kind == TargetKind::kCodes;
    });
    if (plan_.spelling != Spelling::kGguf && !has_codes) plan_.spelling = Spelling::kNone;
  }

  // Returns the input's metadata, or its configuration and tokenizer converted for a file.
  Expected<GgufMetadata> output_metadata() {
    if (plan_.translation) {
      GgufMetadata metadata = plan_.translation->metadata;
      SLUICE_TRY_VOID(put_tokenizer(checkpoint_, metadata));
      return metadata;
    }
    SLUICE_TRY(const auto parts, open_gguf_parts(options_.input));
    return metadata_of(*parts.front());
  }

  Expected<void> write_directory(const std::string& folder) {
    std::vector<std::vector<StoredTensor>> groups;
    for (const PlannedTensor& planned : plan_.tensors) groups.push_back(parts_of(job_of(planned)));
    SLUICE_TRY(SafetensorsWriter writer,
               SafetensorsWriter::create(folder, groups, options_.max_shard_bytes));
    SLUICE_TRY_VOID(write_tensors(writer));
    SLUICE_TRY_VOID(writer.finish());
    return write_hf_files(checkpoint_, folder, plan_);
  }

  template <typename Writer>
  Expected<void> write_tensors(Writer& writer) {
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      const PlannedTensor& planned = plan_.tensors[i];
      tell(i, planned.source.stored_name);
      TensorJob job = job_of(planned);
      take_gptq(job);
      SLUICE_TRY(EncodedTensor encoded, encode_tensor(checkpoint_.path(), job, threads_));
      TensorReport report{.name = planned.source.stored_name,
                          .scheme = planned.target.name,
                          .error = encoded.error,
                          .is_matrix = planned.source.num_dims >= 2};
      const TensorRows shape = planned.source.shape();
      report.num_weights = shape.rows * shape.width;
      for (const TensorPart& part : encoded.parts) {
        SLUICE_TRY_VOID(writer.write(part.tensor.name, part.bytes));
        report.bytes += static_cast<int64_t>(part.bytes.size());
      }
      report_.tensors.push_back(std::move(report));
      done_bytes_ += planned.source.bytes();
      // Experts of a stack are read one by one.
      for (const RowPiece& piece : planned.source.pieces) {
        if (piece.count == source_of(*piece.tensor).shape().rows) advise_read(piece.tensor->data);
      }
    }
    tell(plan_.tensors.size(), "");
    return {};
  }

  // Reads everything back through this engine's loader.
  Expected<void> verify(const std::string& path) {
    SLUICE_TRY(const std::unique_ptr<Checkpoint> written, Checkpoint::open(path));
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      const SourceTensor& source = plan_.tensors[i].source;
      const std::optional<SourceTensor> tensor = read_back(*written, source);
      const bool is_same =
          tensor && tensor->shape().rows == source.shape().rows &&
          tensor->shape().width == source.shape().width &&
          hash_values(path, *tensor, threads_) == report_.tensors[i].error.value_hash;
      if (is_same) continue;
      return make_error(ErrorCode::kInternal,
                        options_.output + ": tensor " + sluice::in_quotes(source.stored_name) +
                            ": found " + (tensor ? "other weights" : "nothing") +
                            " when it was read back, expected those that were written");
    }
    report_.is_verified = true;
    return {};
  }

  const QuantizeOptions& options_;
  int32_t threads_;
  const Checkpoint& checkpoint_;
  QuantizePlan plan_;
  std::map<std::string, float> largest_;  // by joined name
  Calibration calibration_;
  std::string calibration_name_ = "none";
  std::optional<Gptq> gptq_;
  const InputStatistics* gptq_inputs_ = nullptr;
  int64_t done_bytes_ = 0;
  int64_t all_bytes_ = 0;
  QuantizeReport report_;
};

}  // namespace

Expected<QuantizeReport> quantize_checkpoint(QuantizeOptions options) {
  while (options.output.size() > 1 && options.output.ends_with('/')) options.output.pop_back();
  std::error_code error;
  if (options.output.empty() || fs::exists(fs::symlink_status(options.output, error))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "\"" + options.output + "\": found something there, expected a new name",
                      "output");
  }
  if (!(options.target_bits >= 0) || !std::isfinite(options.target_bits)) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--target-bits: found " + number_text(options.target_bits) + ", expected a number of bits",
        "target-bits");
  }
  if (options.target_bits > 0 && (options.to.empty() || !options.recipe.empty())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--target-bits: expected --to with the scheme of fewest bits, and no recipe",
                      "target-bits");
  }
  SLUICE_TRY(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(options.input));
  SLUICE_TRY(QuantizePlan plan, make_quantize_plan(*checkpoint, options));
  return Quantizer(options, *checkpoint, std::move(plan)).run();
}

Expected<QuantizeResult> quantize_model(const QuantizeOptions& options) {
  SLUICE_TRY(const QuantizeReport report, quantize_checkpoint(options));
  return QuantizeResult{.table = report.table(), .json = report.json()};
}

}  // namespace sluice
