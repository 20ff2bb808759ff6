// SPDX-License-Identifier: Apache-2.0
#include "server/cli/node_settings.h"

#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/core/config.h"

namespace sluice {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// A value and the variable or flag that has it.
template <typename Value>
struct Named {
  Value value{};
  std::string name;
};

// What one launcher says of the processes that it started.
struct Claim {
  Named<int32_t> size;
  Named<int32_t> rank;
  std::optional<Named<std::string>> address;
  std::optional<Named<int32_t>> port;
  const char* lacks_address = "";  // what to do without one
};

tl::unexpected<Error> wrong(const std::string& message, const char* knob) {
  return make_error(ErrorCode::kInvalidArgument, message, knob);
}

std::string text_of(const Named<int32_t>& named) {
  return named.name + " is " + std::to_string(named.value);
}

// The variables of one launcher.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  // Null: not set, or empty.
  [[nodiscard]] const std::string* find(const char* name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? nullptr : &found->second;
  }

  [[nodiscard]] bool has(const char* name) const { return find(name) != nullptr; }

  // `beside`: the variable that makes this one necessary.
  [[nodiscard]] Expected<std::string> text(const char* name, const char* beside) const {
    if (const std::string* const found = find(name)) return *found;
    return wrong(std::string(name) + " is missing, " + beside + " is " + *find(beside), "nnodes");
  }

  [[nodiscard]] Expected<Named<int32_t>> number(const char* name, const char* beside) const {
    SLUICE_TRY(const std::string found, text(name, beside));
    int32_t value = 0;
    const char* const end = found.data() + found.size();
    const auto [stop, error] = std::from_chars(found.data(), end, value);
    if (error != std::errc{} || stop != end || value < 0) {
      return wrong(std::string(name) + ": found " + found + ", expected a number", "nnodes");
    }
    return Named<int32_t>{.value = value, .name = name};
  }

  [[nodiscard]] Expected<Named<int32_t>> port(const char* name) const {
    SLUICE_TRY(Named<int32_t> found, number(name, name));
    if (found.value >= 1 && found.value <= UINT16_MAX) return found;
    return wrong(text_of(found) + ", expected a port, 1 to 65535", "master-port");
  }

  [[nodiscard]] Expected<std::optional<Claim>> claim(const char* size, const char* rank) const {
    if (!has(size)) return std::optional<Claim>();
    Claim claim;
    SLUICE_TRY(claim.size, number(size, size));
    if (claim.size.value <= 1) return std::optional<Claim>();
    SLUICE_TRY(claim.rank, number(rank, size));
    if (claim.rank.value < claim.size.value) return std::optional<Claim>(std::move(claim));
    return wrong(text_of(claim.rank) + ", expected less than " + size + ", " +
                     std::to_string(claim.size.value),
                 "node-rank");
  }

 private:
  const Environment& environment_;
};

// The first host of a list such as "rack[2-3]-gpu[008,010-012],other".
std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const bool is_set = list.front() == '[';
    const size_t end = is_set ? list.find(']') : list.find_first_of("[,");
    const std::string_view part = list.substr(is_set ? 1 : 0, is_set ? end - 1 : end);
    host += is_set ? part.substr(0, part.find_first_of(",-")) : part;
    list.remove_prefix(end == list.npos ? list.size() : is_set ? end + 1 : end);
  }
  return host;
}

Expected<std::optional<Claim>> of_leader_worker_set(const Variables& variables) {
  SLUICE_TRY(auto claim, variables.claim("LWS_GROUP_SIZE", "LWS_WORKER_INDEX"));
  if (!claim) return claim;
  SLUICE_TRY(const std::string leader, variables.text("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE"));
  claim->address = {.value = leader, .name = "LWS_LEADER_ADDRESS"};
  return claim;
}

// SLURM_NTASKS and SLURM_PROCID are in batch scripts as well, which are one process.
Expected<std::optional<Claim>> of_slurm(const Variables& variables) {
  SLUICE_TRY(auto claim, variables.claim("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"));
  if (!claim) return claim;
  const std::string* const nodes = variables.find("SLURM_STEP_NUM_NODES");
  if (nodes != nullptr && *nodes == "1") {
    claim->address = {.value = kLoopback, .name = "SLURM_STEP_NUM_NODES=1"};
    return claim;
  }
  SLUICE_TRY(const std::string list, variables.text("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"));
  claim->address = {.value = first_host(list), .name = "SLURM_STEP_NODELIST"};
  if (!claim->address->value.empty()) return claim;
  return wrong("SLURM_STEP_NODELIST: found " + list + ", expected names of nodes", "master-addr");
}

// mpirun says nothing of hosts; people hand MASTER_ADDR on with -x.
Expected<std::optional<Claim>> of_open_mpi(const Variables& variables) {
  SLUICE_TRY(auto claim, variables.claim("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"));
  if (!claim) return claim;
  claim->lacks_address = "set --master-addr, or MASTER_ADDR with mpirun -x";
  const std::string* const local = variables.find("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (const std::string* const address = variables.find("MASTER_ADDR")) {
    claim->address = {.value = *address, .name = "MASTER_ADDR"};
  } else if (local != nullptr && *local == *variables.find("OMPI_COMM_WORLD_SIZE")) {
    claim->address = {.value = kLoopback, .name = "OMPI_COMM_WORLD_LOCAL_SIZE"};
  }
  if (variables.has("MASTER_PORT")) {
    SLUICE_TRY(claim->port, variables.port("MASTER_PORT"));
  }
  return claim;
}

// Its names are in many a shell; all four together are a launcher's.
Expected<std::optional<Claim>> of_torchrun(const Variables& variables) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    if (!variables.has(name)) return std::optional<Claim>();
  }
  SLUICE_TRY(auto claim, variables.claim("WORLD_SIZE", "RANK"));
  if (!claim) return claim;
  claim->address = {.value = *variables.find("MASTER_ADDR"), .name = "MASTER_ADDR"};
  // torchrun's own agent may listen at that port.
  const std::string* const agent = variables.find("TORCHELASTIC_USE_AGENT_STORE");
  if (agent != nullptr && *agent == "True") return claim;
  SLUICE_TRY(claim->port, variables.port("MASTER_PORT"));
  return claim;
}

// All launchers that speak, the one that counts first.
Expected<std::vector<Claim>> claims_of(const Environment& environment) {
  const Variables variables(environment);
  std::vector<Claim> claims;
  for (const auto read : {of_leader_worker_set, of_slurm, of_open_mpi, of_torchrun}) {
    SLUICE_TRY(auto claim, read(variables));
    if (claim) claims.push_back(std::move(*claim));
  }
  return claims;
}

// A group that was given by size and rank, and is not the one that the launcher started.
bool is_another(const Config& config, const Claim& claim) {
  return config.nnodes > 0 && config.node_rank >= 0 && config.nnodes != claim.size.value;
}

// The ranks of a model, each of which may be a process.
int32_t num_ranks(const Config& config) {
  return config.pipeline_parallel_size * config.tensor_parallel_size;
}

// Whether nothing else must say that so many processes share a model: one for each rank, or for
// each stage.
bool are_shares(const Config& config, int32_t count) {
  return count == num_ranks(config) ||
         (config.pipeline_parallel_size > 1 && count == config.pipeline_parallel_size);
}

std::string shares_text(const Config& config) {
  const std::string ranks =
      "--tensor-parallel-size is " + std::to_string(config.tensor_parallel_size);
  if (config.pipeline_parallel_size == 1) return ranks;
  const std::string stages =
      "--pipeline-parallel-size is " + std::to_string(config.pipeline_parallel_size);
  return config.tensor_parallel_size == 1 ? stages : stages + ", " + ranks;
}

Expected<void> check_agreement(const Config& config, const std::vector<Claim>& claims) {
  const bool has_rank = config.node_rank >= 0;
  const Claim& first = claims.front();
  for (const Claim& other : claims) {
    if (other.size.value != first.size.value) {
      return wrong(text_of(first.size) + ", " + text_of(other.size) +
                       ": they contradict each other; set --nnodes and --node-rank",
                   "nnodes");
    }
    if (!has_rank && other.rank.value != first.rank.value) {
      return wrong(text_of(first.rank) + ", " + text_of(other.rank) +
                       ": they contradict each other; set --node-rank",
                   "node-rank");
    }
  }
  if (config.nnodes > 0) {
    if (config.nnodes == first.size.value) return {};
    return wrong("--nnodes is " + std::to_string(config.nnodes) + ", " + text_of(first.size) +
                     ": they contradict each other; set --node-rank",
                 "nnodes");
  }
  if (are_shares(config, first.size.value)) return {};
  return wrong(shares_text(config) + ", " + text_of(first.size) +
                   ": set --nnodes, 1 where each process has the whole model",
               config.pipeline_parallel_size > 1 ? "pipeline-parallel-size" : "tensor-parallel-size");
}

// An address of IPv6 is often written as in a URL, "[::1]".
std::string bare_host(const std::string& host) {
  const bool has_brackets = host.starts_with('[') && host.ends_with(']');
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

// Fills one value and says in `sources` where it is from.
template <typename Value>
void settle(const char* knob,
            Value& value,
            const Value& empty,
            const std::optional<Named<Value>>& claimed,
            const Value& otherwise,
            std::string& sources) {
  std::string from = "as given";
  if (value == empty) {
    value = claimed ? claimed->value : otherwise;
    from = claimed ? "from " + claimed->name : "by default";
  }
  std::string shown;
  if constexpr (std::is_same_v<Value, std::string>) {
    shown = value;
  } else {
    shown = std::to_string(value);
  }
  sources += (sources.empty() ? "" : ", ") + std::string(knob) + " " + shown + " " + from;
}

std::string fill(Config& config, const Claim* claim) {
  const Config empty = [] {
    Config made;
    clear_nodes(made);
    return made;
  }();
  const Config defaults;
  std::optional<Named<int32_t>> size;
  std::optional<Named<int32_t>> rank;
  if (claim != nullptr) {
    size = claim->size;
    rank = claim->rank;
  }
  config.master_addr = bare_host(config.master_addr);
  std::string sources;
  settle("nnodes", config.nnodes, empty.nnodes, size, defaults.nnodes, sources);
  settle("node-rank", config.node_rank, empty.node_rank, rank, defaults.node_rank, sources);
  settle("master-addr",
         config.master_addr,
         empty.master_addr,
         claim != nullptr ? claim->address : std::nullopt,
         defaults.master_addr,
         sources);
  settle("master-port",
         config.master_port,
         empty.master_port,
         claim != nullptr ? claim->port : std::nullopt,
         defaults.master_port,
         sources);
  return sources;
}

}  // namespace

Environment process_environment() {
  Environment variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == text.npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

void clear_nodes(Config& config) {
  config.nnodes = 0;
  config.node_rank = -1;
  config.master_addr.clear();
  config.master_port = 0;
}

Expected<void> set_dist_init_addr(Config& config, const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = bare_host(text.substr(0, colon));
  const Knob& port = *find_knob("master-port");
  if (colon == text.npos || host.empty() || !port.set(config, port, text.substr(colon + 1))) {
    return wrong("--dist-init-addr must be host:port, got \"" + text + "\"", "master-addr");
  }
  config.master_addr = std::move(host);
  return {};
}

Expected<std::string> settle_nodes(Config& config, const Environment& environment) {
  const bool is_whole = config.nnodes == 1 || (config.nnodes == 0 && num_ranks(config) == 1);
  const Expected<std::vector<Claim>> claims = claims_of(environment);
  if (is_whole) {
    const bool is_given = config.nnodes == 1;
    fill(config, nullptr);
    if (!claims || claims->empty() || is_given) return std::string();
    return text_of(claims->front().size) +
           ", but this process has the whole model: --tensor-parallel-size is 1";
  }
  // Nothing is asked of launchers where all is given.
  const bool needs_none = config.nnodes > 0 && config.node_rank >= 0 && !config.master_addr.empty();
  if (!needs_none && !claims) return tl::unexpected(claims.error());
  const Claim* claim = nullptr;
  if (!needs_none && !claims->empty() && !is_another(config, claims->front())) {
    SLUICE_TRY_VOID(check_agreement(config, *claims));
    claim = &claims->front();
    if (!claim->address && config.master_addr.empty()) {
      return wrong(text_of(claim->size) + ", but nothing names node 0: " + claim->lacks_address,
                   "master-addr");
    }
  }
  std::string sources = fill(config, claim);
  return config.nnodes == 1 ? std::string() : sources;
}

}  // namespace sluice
