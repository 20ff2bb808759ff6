// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "engine/core/log.h"
#include "engine/quantize/source_rows.h"
#include "engine/tokenizer/text/regex.h"
#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxRules = 1000;

constexpr std::string_view kLinearNames[] = {
    "attn_q",       "attn_k",         "attn_v",          "attn_qkv",      "attn_q_a",
    "attn_q_b",     "attn_kv_a_mqa",  "attn_output",     "ffn_gate",      "ffn_up",
    "ffn_down",     "ffn_gate_exps",  "ffn_up_exps",     "ffn_down_exps", "ffn_gate_shexp",
    "ffn_up_shexp", "ffn_down_shexp", "ffn_latent_down", "ffn_latent_up", "mamba_in",
    "mamba_out",    "delta_q",        "delta_k",         "delta_v",       "delta_qkv",
    "delta_gate",   "delta_qkvz",     "delta_out",       "conv_in",       "conv_out"};

// What layers read as vectors, although files have it in two dimensions.
constexpr std::string_view kVectorNames[] = {"attn_q_norm",
                                             "attn_k_norm",
                                             "mamba_conv",
                                             "mamba_skip",
                                             "mamba_log_rate",
                                             "delta_log_rate",
                                             "delta_conv",
                                             "delta_conv_q",
                                             "delta_conv_k",
                                             "delta_conv_v",
                                             "conv_kernel"};

struct LayerName {
  int32_t layer = -1;
  std::string_view name;  // "attn_q" of "blk.3.attn_q.weight", without an expert's number
};

std::optional<LayerName> layer_name(std::string_view name) {
  constexpr std::string_view kLayers = "blk.";
  constexpr std::string_view kWeight = ".weight";
  if (!name.starts_with(kLayers) || !name.ends_with(kWeight)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  name.remove_suffix(kWeight.size());
  LayerName result;
  const auto [end, error] = std::from_chars(name.begin(), name.end(), result.layer);
  if (error != std::errc() || end == name.end() || *end != '.') return std::nullopt;
  result.name = name.substr(static_cast<size_t>(end - name.begin()) + 1);
  result.name = result.name.substr(0, result.name.find('.'));
  return result;
}

// What directories of a family have in an order that is read and not written; empty: nothing.
std::string_view own_order_of(const FileSpec& files) {
  if (files.groups_qkv) return "rows of q, k and v that take turns";
  if (files.is_transposed) return "matrices with a row for each input";
  if (files.splits_qkv) return "q, k and v as one";
  const bool is_turned = files.experts == ExpertTensors::kTransposedDown;
  return is_turned && !files.is_encoder ? "transposed down matrices of experts" : "";
}

bool is_matrix(const SourceTensor& tensor) {
  const std::optional<LayerName> name = layer_name(tensor.name);
  if (name && std::ranges::find(kVectorNames, name->name) != std::end(kVectorNames)) return false;
  return tensor.num_dims >= 2 && tensor.name.ends_with(".weight");
}

bool is_linear(const SourceTensor& tensor) {
  const std::optional<LayerName> name = layer_name(tensor.name);
  return is_matrix(tensor) && name &&
         std::find(std::begin(kLinearNames), std::end(kLinearNames), name->name) !=
             std::end(kLinearNames);
}

// Whether GGUF's tools quantize it: every matrix but routers.
bool is_gguf_matrix(const SourceTensor& tensor) {
  return is_matrix(tensor) && tensor.name.find("_inp.weight") == std::string::npos &&
         tensor.name.find("norm") == std::string::npos;
}

// Whether it is a matrix of each head of latent attention, which inputs take unquantized.
bool is_of_heads(const SourceTensor& tensor) {
  const std::optional<LayerName> name = layer_name(tensor.name);
  return name && (name->name == "attn_kv_b" || name->name == "attn_k_b" || name->name == "attn_v_b");
}

tl::unexpected<Error> wrong(const std::string& message, const std::string& param) {
  return make_error(ErrorCode::kInvalidArgument, message, param);
}

struct Rule {
  std::string expression;
  std::string flag;
  Regex regex;
  std::optional<TargetScheme> scheme = {};  // in a recipe; none: keep
  bool has_matched = false;

  bool matches(const std::string& name) {
    Regex::Scanner scanner;
    Regex::Range range;
    const bool found = regex.find(name, 0, scanner, range);
    has_matched = has_matched || found;
    return found;
  }
};

Expected<Rule> make_rule(const std::string& expression, const std::string& flag) {
  auto regex = Regex::compile(expression);
  if (!regex) return wrong("--" + flag + ": " + regex.error().message, flag);
  return Rule{.expression = expression, .flag = flag, .regex = std::move(*regex)};
}

Expected<std::vector<Rule>> make_rules(const std::vector<std::string>& expressions,
                                       const std::string& flag) {
  std::vector<Rule> rules;
  for (const std::string& expression : expressions) {
    SLUICE_TRY(Rule rule, make_rule(expression, flag));
    rules.push_back(std::move(rule));
  }
  return rules;
}

// Reads a recipe's pairs, and stops where the text cannot be one: what follows may be long.
class RecipeReader {
 public:
  using Pair = std::pair<std::string, std::string>;  // an expression and a scheme

  Expected<std::vector<Pair>> read(const std::string& text) {
    const bool is_read = Json::sax_parse(text, this);
    if (!problem_.empty()) return wrong("--recipe: " + problem_, "recipe");
    if (!is_read || pairs_.empty()) return wrong("--recipe: " + expected_form(), "recipe");
    return std::move(pairs_);
  }

  // What nlohmann's reader calls; false ends it.
  bool null() { return other_value(); }
  bool boolean(bool) { return other_value(); }
  bool number_integer(Json::number_integer_t) { return other_value(); }
  bool number_unsigned(Json::number_unsigned_t) { return other_value(); }
  bool number_float(Json::number_float_t, const std::string&) { return other_value(); }
  bool binary(Json::binary_t&) { return other_value(); }
  bool start_array(size_t) { return other_value(); }
  bool end_array() { return true; }
  bool end_object() { return true; }

  bool start_object(size_t) {
    if (is_inside_) return other_value();
    is_inside_ = true;
    return true;
  }

  bool key(std::string& expression) {
    if (pairs_.size() == kMaxRules) {
      problem_ = expected_form();
    } else if (!keys_.insert(expression).second) {
      problem_ = sluice::in_quotes(expression) + ": found twice, expected once";
    }
    pairs_.emplace_back(expression, "");
    return problem_.empty();
  }

  bool string(std::string& scheme) {
    if (!is_inside_) return false;
    pairs_.back().second = scheme;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) {
    problem_ = expected_form();
    return false;
  }

 private:
  static std::string expected_form() {
    return "expected a JSON object of 1 to " + std::to_string(kMaxRules) +
           " pairs of an expression and a scheme";
  }

  bool other_value() {
    if (is_inside_) {
      problem_ = sluice::in_quotes(pairs_.back().first) + ": expected the name of a scheme";
    }
    return false;
  }

  bool is_inside_ = false;
  std::string problem_;
  std::set<std::string> keys_;
  std::vector<Pair> pairs_;
};

Expected<std::vector<Rule>> parse_recipe(const std::string& text) {
  std::vector<Rule> rules;
  if (text.empty()) return rules;
  SLUICE_TRY(const auto pairs, RecipeReader().read(text));
  for (const auto& [expression, scheme] : pairs) {
    SLUICE_TRY(Rule rule, make_rule(expression, "recipe"));
    if (scheme != "keep") {
      SLUICE_TRY(rule.scheme, parse_target(scheme));
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const QuantizeOptions& options)
      : checkpoint_(checkpoint), options_(options) {}

  Expected<QuantizePlan> run() {
    SLUICE_TRY_VOID(check_left_out());
    if (options_.to.empty() && options_.recipe.empty()) {
      return wrong("needs --to with a scheme, or --recipe", "to");
    }
    if (!options_.to.empty()) {
      SLUICE_TRY(scheme_, parse_target(options_.to));
    }
    SLUICE_TRY(recipe_, parse_recipe(options_.recipe));
    std::vector<TargetScheme*> schemes;
    if (scheme_) schemes.push_back(&*scheme_);
    for (Rule& rule : recipe_) {
      if (rule.scheme) schemes.push_back(&*rule.scheme);
    }
    plan_.kind = kind_of(schemes);
    SLUICE_TRY_VOID(check_name());
    for (TargetScheme* scheme : schemes) as_of_output(*scheme);
    if (!scheme_ && !options_.include.empty()) {
      return wrong("--include: found no --to, expected one with the scheme of what it adds",
                   "include");
    }
    SLUICE_TRY(include_, make_rules(options_.include, "include"));
    SLUICE_TRY(exclude_, make_rules(options_.exclude, "exclude"));
    SLUICE_TRY(std::vector<SourceTensor> sources, sources_for(schemes));
    for (SourceTensor& source : sources) add(std::move(source));
    SLUICE_TRY_VOID(check_rules());
    SLUICE_TRY_VOID(check_spelling());
    return std::move(plan_);
  }

 private:
  // Tensors that the loader drops cannot be written.
  [[nodiscard]] Expected<void> check_left_out() const {
    if (!checkpoint_.id_offsets().empty()) {
      return make_error(ErrorCode::kUnsupported,
                        checkpoint_.path() +
                            ": tensor \"d2t\": found a head that chooses from some of its model's "
                            "tokens, expected one that chooses from all",
                        "input");
    }
    const std::vector<std::string>& left_out = checkpoint_.left_out();
    if (left_out.empty()) return {};
    warn_of_file(checkpoint_.path(),
                 left_out.front(),
                 std::to_string(left_out.size()) + " tensors of other parts than the text model",
                 "nothing: the output does not have them");
    return {};
  }

  static bool is_mxfp4(const TargetScheme& scheme) {
    return scheme.kind == TargetKind::kCodes && scheme.code == CodeScheme::kMxfp4;
  }

  [[nodiscard]] CheckpointKind kind_of(const std::vector<TargetScheme*>& schemes) const {
    for (const TargetScheme* scheme : schemes) {
      if (scheme->spelling == Spelling::kGguf) return CheckpointKind::kGguf;
    }
    for (const TargetScheme* scheme : schemes) {
      const bool is_code = scheme->kind == TargetKind::kCodes && !is_mxfp4(*scheme);
      if (is_code) return CheckpointKind::kHuggingFace;
    }
    return options_.output.ends_with(".gguf") ? CheckpointKind::kGguf
                                              : CheckpointKind::kHuggingFace;
  }

  [[nodiscard]] Expected<void> check_name() const {
    const bool is_file = options_.output.ends_with(".gguf");
    if (!is_file || plan_.kind == CheckpointKind::kGguf) return {};
    return wrong(options_.output + ": found the name of a GGUF file, expected a directory's for " +
                     (scheme_ ? scheme_->name : "the recipe") +
                     ", or a type of GGUF such as Q4_K_M",
                 "output");
  }

  // Whether directories of the family have a layer's experts in one tensor, with a spelling of
  // MXFP4 of its own.
  [[nodiscard]] bool has_fused_experts() const {
    const FileSpec* const files = checkpoint_.file_spec();
    return files != nullptr && files->experts == ExpertTensors::kTransposed;
  }

  // MXFP4 is also a GGUF type, and has its own spelling for fused experts.
  void as_of_output(TargetScheme& scheme) const {
    if (!is_mxfp4(scheme)) return;
    if (plan_.kind == CheckpointKind::kGguf) {
      scheme = {.name = "MXFP4",
                .spelling = Spelling::kGguf,
                .kind = TargetKind::kBlocks,
                .format = WeightFormat::kMXFP4};
    } else if (has_fused_experts()) {
      scheme.spelling = Spelling::kMxfp4;
    }
  }

  // Other programs support no codes but gpt-oss's MXFP4 for fused experts.
  Expected<std::vector<SourceTensor>> sources_for(const std::vector<TargetScheme*>& schemes) {
    const FileSpec* const files = checkpoint_.file_spec();
    const bool are_halves =
        files != nullptr && files->experts == ExpertTensors::kTransposedHalves;
    const bool is_apart = std::ranges::any_of(schemes, [are_halves](const TargetScheme* scheme) {
      return scheme->kind == TargetKind::kCodes && (are_halves || !is_mxfp4(*scheme));
    });
    const ExpertLayout experts = is_apart ? ExpertLayout::kApart : ExpertLayout::kFused;
    const std::string own = files == nullptr ? "" : std::string(own_order_of(*files));
    if (plan_.kind == CheckpointKind::kHuggingFace && !own.empty()) {
      return wrong(checkpoint_.path() + ": found " + own +
                       " in a directory, expected a type of GGUF such as Q4_K_M",
                   "to");
    }
    if (plan_.kind == checkpoint_.kind()) return sources_of(checkpoint_, experts);
    SLUICE_TRY(plan_.translation, translate(checkpoint_, experts, options_.output));
    return std::move(plan_.translation->tensors);
  }

  void add(SourceTensor source) {
    PlannedTensor planned{.source = std::move(source), .target = {}};
    const SourceTensor& tensor = planned.source;
    std::optional<TargetScheme> scheme = scheme_of(tensor);
    if (scheme) {
      planned.target = scheme->spelling == Spelling::kGguf
                           ? gguf_target(*scheme, place_of(tensor))
                           : target_of(*scheme, tensor.shape().width, options_.search);
      if (plan_.scheme.name.empty() || scheme_) plan_.scheme = scheme_ ? *scheme_ : *scheme;
    }
    if (plan_.translation && plan_.kind == CheckpointKind::kGguf &&
        planned.target.kind == TargetKind::kKept && !is_gguf_matrix(tensor)) {
      planned.target = {.kind = TargetKind::kBlocks, .format = WeightFormat::kF32, .name = "f32"};
    }
    const bool is_kept = planned.target.kind == TargetKind::kKept;
    planned.target = without_lost_codes(tensor, plan_.kind, std::move(planned.target));
    // Codes that cannot stay become the floats of --to, if it asks for floats.
    const bool is_bf16 = is_kept && planned.target.name == "bf16";
    if (is_bf16 && scheme_ && !layout_of(scheme_->format).is_integer() &&
        scheme_->kind == TargetKind::kBlocks) {
      planned.target.format = scheme_->format;
      planned.target.name = scheme_->name;
    }
    plan_.tensors.push_back(std::move(planned));
  }

  // Codes are those of a layer's weight. None have one tensor for all experts of a layer, nor
  // positions, whose rows are added as they are.
  static bool can_take(const std::optional<TargetScheme>& scheme, const SourceTensor& tensor) {
    const bool is_weight = (tensor.is_fused || tensor.stored_name.ends_with(".weight")) &&
                           tensor.name != "position_embd.weight";
    return !scheme || scheme->kind != TargetKind::kCodes || is_weight;
  }

  // A rule that names what its scheme cannot have has not matched.
  std::optional<TargetScheme> scheme_of(const SourceTensor& tensor) {
    const std::string& name = tensor.input_name;
    const auto match = [&](std::vector<Rule>& rules) {
      bool found = false;
      for (Rule& rule : rules) found = rule.matches(name) || found;
      return found;
    };
    const bool is_left = match(exclude_);
    const bool is_asked = is_matrix(tensor) && can_take(scheme_, tensor) && match(include_);
    Rule* of_recipe = nullptr;
    for (Rule& rule : recipe_) {
      if (!can_take(rule.scheme, tensor)) continue;
      if (rule.matches(name) && of_recipe == nullptr) of_recipe = &rule;
    }
    if (is_left || !is_matrix(tensor)) return std::nullopt;
    if (of_recipe != nullptr) return of_recipe->scheme;
    if (!scheme_) return std::nullopt;
    return is_asked || takes_by_default(tensor) ? scheme_ : std::nullopt;
  }

  // A conversion to floats of the other kind applies to all matrices.
  [[nodiscard]] bool takes_by_default(const SourceTensor& tensor) const {
    if (scheme_->spelling == Spelling::kMxfp4) return tensor.is_fused;
    if (scheme_->spelling != Spelling::kNone && is_of_heads(tensor)) return false;
    const bool is_stack = !tensor.stored_name.ends_with(".weight");
    if (scheme_->kind == TargetKind::kCodes && is_stack) return false;
    const bool is_whole = plan_.translation && scheme_->spelling == Spelling::kNone;
    return scheme_->spelling == Spelling::kGguf || is_whole ? is_gguf_matrix(tensor)
                                                            : is_linear(tensor);
  }

  [[nodiscard]] int32_t number(std::string_view key) const {
    return static_cast<int32_t>(checkpoint_.metadata().get_uint_or(key, 0).value_or(0));
  }

  [[nodiscard]] MatrixPlace place_of(const SourceTensor& tensor) const {
    const std::optional<LayerName> name = layer_name(tensor.name);
    const int32_t heads = number("attention.head_count");
    const int32_t kv_heads = number("attention.head_count_kv");
    const bool is_tied = !checkpoint_.has("output.weight");
    return {.name = tensor.name,
            .k = tensor.shape().width,
            .layer = name ? name->layer : -1,
            .num_layers = number("block_count"),
            .is_head =
                tensor.name == "output.weight" || (is_tied && tensor.name == "token_embd.weight"),
            .query_groups = kv_heads > 0 ? heads / kv_heads : 1,
            .num_experts = number("expert_count")};
  }

  [[nodiscard]] Expected<void> check_rules() const {
    for (const std::vector<Rule>* rules : {&recipe_, &include_, &exclude_}) {
      for (const Rule& rule : *rules) {
        if (rule.has_matched) continue;
        return wrong("--" + rule.flag + ": " + sluice::in_quotes(rule.expression) +
                         (rule.flag == "include" ? ": found no matrix of such a name, expected one"
                                                 : ": found no tensor of such a name, expected one"),
                     rule.flag);
      }
    }
    return {};
  }

  Expected<void> check_spelling() {
    bool has_any = false;
    for (const PlannedTensor& planned : plan_.tensors) {
      const Target& target = planned.target;
      has_any = has_any || target.kind != TargetKind::kKept;
      if (target.spelling == Spelling::kNone) continue;
      if (plan_.spelling != Spelling::kNone && plan_.spelling != target.spelling) {
        return wrong("--recipe: tensor " + sluice::in_quotes(planned.source.input_name) +
                         ": found scheme " + target.name +
                         ", expected one that a checkpoint can have beside the others",
                     "recipe");
      }
      plan_.spelling = target.spelling;
    }
    if (!has_any && !plan_.translation) {
      return wrong("every tensor is kept: there is nothing to quantize", "to");
    }
    for (const PlannedTensor& planned : plan_.tensors) {
      if (planned.target.spelling != Spelling::kMxfp4 || planned.source.is_fused) continue;
      return make_error(ErrorCode::kUnsupported,
                        checkpoint_.path() + ": tensor " +
                            sluice::in_quotes(planned.source.input_name) +
                            ": found no experts, expected some for mxfp4 in a model of gpt-oss",
                        "to");
    }
    return {};
  }

  const Checkpoint& checkpoint_;
  const QuantizeOptions& options_;
  std::optional<TargetScheme> scheme_;
  std::vector<Rule> recipe_;
  std::vector<Rule> include_;
  std::vector<Rule> exclude_;
  QuantizePlan plan_;
};

}  // namespace

Expected<QuantizePlan> make_quantize_plan(const Checkpoint& checkpoint,
                                          const QuantizeOptions& options) {
  return Planner(checkpoint, options).run();
}

Target without_lost_codes(const SourceTensor& tensor, CheckpointKind kind, Target target) {
  if (target.kind != TargetKind::kKept) return target;
  const std::optional<WeightFormat> format = tensor.format();
  if (tensor.pieces.empty() || tensor.offset != 0) {
    return {.kind = TargetKind::kBlocks, .format = WeightFormat::kF32, .name = "f32"};
  }
  const bool is_block = format && layout_of(*format).is_integer();
  const bool are_lost = !format || (kind == CheckpointKind::kHuggingFace && is_block);
  if (!are_lost) return target;
  if (tensor.is_fused && format == WeightFormat::kMXFP4) {
    return {.kind = TargetKind::kCodes,
            .spelling = Spelling::kMxfp4,
            .encoding = {.scheme = CodeScheme::kMxfp4,
                         .group = scheme_info(CodeScheme::kMxfp4).group},
            .name = "mxfp4"};
  }
  return {.kind = TargetKind::kBlocks, .name = "bf16"};
}

std::string budget_name(const std::string& gguf_name) {
  std::string name = joined_name(gguf_name);
  constexpr std::string_view kExperts = "_exps.";
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return name;
  const size_t number = at + kExperts.size();
  const size_t end = name.find('.', number);
  return end == std::string::npos ? name : name.erase(number, end + 1 - number);
}

std::string joined_name(const std::string& gguf_name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kJoined = {
      {{".attn_q.", ".attn_qkv."},
       {".attn_k.", ".attn_qkv."},
       {".attn_v.", ".attn_qkv."},
       {".ffn_gate.", ".ffn_up."},
       {".delta_gate.", ".delta_qkv."},
       {".delta_q.", ".delta_qkv."},
       {".delta_k.", ".delta_qkv."},
       {".delta_v.", ".delta_qkv."},
       {".ffn_gate_exps.", ".ffn_up_exps."}}};
  for (const auto& [part, whole] : kJoined) {
    const size_t at = gguf_name.find(part);
    if (at == std::string::npos) continue;
    std::string name = gguf_name;
    return name.replace(at, part.size(), whole);
  }
  return gguf_name;
}

}  // namespace sluice
