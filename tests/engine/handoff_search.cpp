// SPDX-License-Identifier: Apache-2.0
// Transfers meet only in what a Pair holds, so each one's state is interned and its steps are
// worked out once for what it sees of its workers; a world is three numbers and a word.
#include "tests/engine/handoff_search.h"

#include <algorithm>
#include <array>
#include <random>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "engine/core/status.h"

namespace sluice::model {
namespace {

constexpr int kPairBits = 22;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Hash {
  size_t operator()(uint64_t key) const { return mix(key); }
};

struct PrefillWorkerBits {
  bool is_second = false;
  bool is_draining = false;
};

struct DecodeWorkerBits {
  bool is_second = false;
  bool is_draining = false;
  uint8_t room_used = 0;
  std::array<Slot, kMaxSlots> slots{};  // owners are transfers' numbers + 1
};

struct Node {
  std::array<uint32_t, kMaxTransfers> locals{};
  std::array<PrefillWorkerBits, kMaxWorkers> prefills{};
  std::array<DecodeWorkerBits, kMaxWorkers> decodes{};
  int faults = 0;
};

uint32_t bits_of(const Pair& pair) {
  uint32_t bits = pair.p_epoch - 1U;
  bits = bits << 1 | (pair.p_draining ? 1U : 0U);
  bits = bits << 1 | (pair.d_epoch - 1U);
  bits = bits << 1 | (pair.d_draining ? 1U : 0U);
  bits = bits << 2 | pair.room_used;
  for (const Slot& slot : pair.slots) {
    CHECK_LT(slot.generation, 16);
    bits = bits << 2 | slot.owner;
    bits = bits << 4 | slot.generation;
    bits = bits << 2 | slot.attempt;
  }
  return bits;
}

// A set of fingerprints.
class Seen {
 public:
  Seen() : table_(size_t{1} << 16) {}

  bool insert(uint64_t key) {
    key += key == 0 ? 1 : 0;
    if (size_ * 2 > table_.size()) grow();
    if (!put(key)) return false;
    ++size_;
    return true;
  }

  [[nodiscard]] size_t size() const { return size_; }

 private:
  bool put(uint64_t key) {
    size_t at = key & (table_.size() - 1);
    while (table_[at] != 0) {
      if (table_[at] == key) return false;
      at = (at + 1) & (table_.size() - 1);
    }
    table_[at] = key;
    return true;
  }

  void grow() {
    std::vector<uint64_t> old(table_.size() * 2);
    old.swap(table_);
    for (const uint64_t key : old) {
      if (key != 0) put(key);
    }
  }

  std::vector<uint64_t> table_;
  size_t size_ = 0;
};

struct Edge {
  Move move;
  uint32_t local = 0;
  Pair pair;
  int violation = -1;
};

// Where a transfer comes to when it is left alone.
struct Rest {
  bool is_at_rest = false;
  uint32_t local = 0;
  Pair pair;
};

// What leads from a world to another one.
struct Step2 {
  uint8_t transfer = 0;  // kMaxTransfers + worker: a worker's own
  Move move;
};

class Search {
 public:
  explicit Search(const Scope& scope) : scope_(scope), world_(scope.rules) {
    std::string bytes;
    World::pack({}, bytes);
    numbers_.emplace(bytes, 0);
    locals_.push_back(std::make_unique<Local>());
  }

  Found search();
  Found walk(uint64_t num_steps, uint64_t seed);

 private:
  struct Next {
    Node node;
    Step2 step;
  };

  [[nodiscard]] int num_transfers() const { return static_cast<int>(scope_.transfers.size()); }

  uint32_t number_of(const Local& local);
  [[nodiscard]] Pair pair_of(const Node& node, int transfer) const;
  void put(Node& node, int transfer, uint32_t local, const Pair& pair) const;
  const std::vector<Edge>& edges(uint32_t local, const Pair& pair, bool are_faults);
  const Rest& rest(uint32_t local, const Pair& pair, int num_steps = 0);
  bool comes_to_rest(Node node);
  bool list_next(const Node& node, std::vector<Next>& next);
  bool list_worker_steps(const Node& node, std::vector<Next>& next);
  bool change_worker(const Node& node, bool is_prefill, int worker, Step step, Next& next);
  [[nodiscard]] uint64_t fingerprint(const Node& node) const;
  int violate(std::string what);
  std::string report(const Node& node, const std::string& what) const;

  const Scope scope_;
  World world_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::vector<std::unique_ptr<Local>> locals_;
  std::unordered_map<uint64_t, std::vector<Edge>, Hash> edges_;
  std::unordered_map<uint64_t, Rest, Hash> rests_;
  std::vector<std::string> violations_;
  Found found_;
};

uint32_t Search::number_of(const Local& local) {
  std::string bytes;
  World::pack(num_transfers() > 1 && World::is_done(local) ? World::done() : local, bytes);
  const auto [at, is_new] = numbers_.emplace(bytes, static_cast<uint32_t>(locals_.size()));
  if (is_new)
    locals_.push_back(std::make_unique<Local>(
        num_transfers() > 1 && World::is_done(local) ? World::done() : local));
  return at->second;
}

// Returns what the transfer sees: slots are free, its own (1) or another's (2), of which it sees
// nothing else.
Pair Search::pair_of(const Node& node, int transfer) const {
  const Transfer& workers = scope_.transfers[transfer];
  const PrefillWorkerBits& p = node.prefills[workers.prefill];
  const DecodeWorkerBits& d = node.decodes[workers.decode];
  Pair pair{.p_epoch = static_cast<uint8_t>(p.is_second ? 2 : 1),
            .p_draining = p.is_draining,
            .d_epoch = static_cast<uint8_t>(d.is_second ? 2 : 1),
            .d_draining = d.is_draining,
            .room_used = d.room_used,
            .slots = d.slots};
  for (Slot& slot : pair.slots) {
    if (slot.owner == 0) {
      slot.attempt = 0;
    } else if (slot.owner == transfer + 1) {
      slot.owner = 1;
    } else {
      slot = {.owner = 2};
    }
  }
  return pair;
}

void Search::put(Node& node, int transfer, uint32_t local, const Pair& pair) const {
  node.locals[transfer] = local;
  DecodeWorkerBits& d = node.decodes[scope_.transfers[transfer].decode];
  d.room_used = pair.room_used;
  for (int i = 0; i < kMaxSlots; ++i) {
    const bool is_others = d.slots[i].owner != 0 && d.slots[i].owner != transfer + 1;
    if (is_others) continue;
    d.slots[i] = pair.slots[i];
    d.slots[i].owner = pair.slots[i].owner == 0 ? 0 : static_cast<uint8_t>(transfer + 1);
    if (pair.slots[i].owner == 0) d.slots[i].attempt = 0;
  }
}

int Search::violate(std::string what) {
  violations_.push_back(std::move(what));
  return static_cast<int>(violations_.size()) - 1;
}

const std::vector<Edge>& Search::edges(uint32_t local, const Pair& pair, bool are_faults) {
  const uint64_t key =
      (uint64_t{local} << kPairBits | bits_of(pair)) << 1 | static_cast<uint64_t>(are_faults);
  if (const auto found = edges_.find(key); found != edges_.end()) return found->second;
  std::vector<Edge> made;
  std::vector<Move> moves;
  world_.list_moves(*locals_[local], pair, moves);
  for (const Move& move : moves) {
    if (move.is_fault != are_faults) continue;
    const Outcome outcome = world_.make(*locals_[local], pair, 0, move);
    Edge edge{.move = move, .local = number_of(outcome.local), .pair = outcome.pair};
    if (!outcome.violation.empty()) edge.violation = violate(outcome.violation);
    if (edge.local == local && bits_of(edge.pair) == bits_of(pair) && edge.violation < 0) continue;
    made.push_back(edge);
  }
  return edges_.emplace(key, std::move(made)).first->second;
}

const Rest& Search::rest(uint32_t local, const Pair& pair, int num_steps) {
  constexpr int kMostSteps = 200;
  const uint64_t key = uint64_t{local} << kPairBits | bits_of(pair);
  if (const auto found = rests_.find(key); found != rests_.end()) return found->second;
  Move move;
  Rest found{.local = local, .pair = pair};
  if (num_steps < kMostSteps && world_.next_alone(*locals_[local], pair, move)) {
    const Outcome outcome = world_.make(*locals_[local], pair, 0, move);
    found = rest(number_of(outcome.local), outcome.pair, num_steps + 1);
  } else {
    found.is_at_rest = World::is_at_rest(*locals_[local], pair, 0);
  }
  return rests_.emplace(key, found).first->second;
}

bool Search::comes_to_rest(Node node) {
  for (int round = 0; round <= num_transfers(); ++round) {
    bool all = true;
    for (int t = 0; t < num_transfers(); ++t) {
      const Rest& found = rest(node.locals[t], pair_of(node, t));
      put(node, t, found.local, found.pair);
      all = all && found.is_at_rest;
    }
    if (all) return true;
  }
  return false;
}

bool Search::change_worker(const Node& node, bool is_prefill, int worker, Step step, Next& next) {
  next = {.node = node,
          .step = {.transfer = static_cast<uint8_t>(kMaxTransfers + worker),
                   .move = {.step = step, .is_fault = true}}};
  ++next.node.faults;
  if (step == Step::kPRestarted) next.node.prefills[worker] = {.is_second = true};
  if (step == Step::kPDraining) next.node.prefills[worker].is_draining = true;
  if (step == Step::kDRestarted) next.node.decodes[worker] = {.is_second = true};
  if (step == Step::kDDraining) next.node.decodes[worker].is_draining = true;
  for (int t = 0; t < num_transfers(); ++t) {
    const Transfer& workers = scope_.transfers[t];
    if ((is_prefill ? workers.prefill : workers.decode) != worker) continue;
    const Outcome outcome =
        world_.make(*locals_[node.locals[t]], pair_of(next.node, t), 0, next.step.move);
    put(next.node, t, number_of(outcome.local), outcome.pair);
    if (outcome.violation.empty()) continue;
    found_.violation = report(next.node, outcome.violation);
    return false;
  }
  return true;
}

bool Search::list_worker_steps(const Node& node, std::vector<Next>& next) {
  if (!scope_.may_restart) return true;
  Next made;
  for (int worker = 0; worker < kMaxWorkers; ++worker) {
    const auto is_prefill = [&](const Transfer& t) { return t.prefill == worker; };
    const auto is_decode = [&](const Transfer& t) { return t.decode == worker; };
    const auto add = [&](bool prefill, Step step) {
      if (!change_worker(node, prefill, worker, step, made)) return false;
      next.push_back(made);
      return true;
    };
    if (std::ranges::any_of(scope_.transfers, is_prefill)) {
      const PrefillWorkerBits& p = node.prefills[worker];
      if (!p.is_second && !add(true, Step::kPRestarted)) return false;
      if (!p.is_draining && !add(true, Step::kPDraining)) return false;
    }
    if (std::ranges::any_of(scope_.transfers, is_decode)) {
      const DecodeWorkerBits& d = node.decodes[worker];
      if (!d.is_second && !add(false, Step::kDRestarted)) return false;
      if (!d.is_draining && !add(false, Step::kDDraining)) return false;
    }
  }
  return true;
}

// False: a rule is broken.
bool Search::list_next(const Node& node, std::vector<Next>& next) {
  next.clear();
  const bool has_faults = scope_.max_faults < 0 || node.faults < scope_.max_faults;
  for (int i = 0; i < num_transfers() * (has_faults ? 2 : 1); ++i) {
    const int t = i / (has_faults ? 2 : 1);
    const bool are_faults = has_faults && i % 2 == 1;
    for (const Edge& edge : edges(node.locals[t], pair_of(node, t), are_faults)) {
      Next made{.node = node, .step = {.transfer = static_cast<uint8_t>(t), .move = edge.move}};
      put(made.node, t, edge.local, edge.pair);
      made.node.faults += edge.move.is_fault ? 1 : 0;
      if (edge.violation >= 0) {
        found_.violation =
            report(node, violations_[edge.violation] + " by: " + world_.describe(edge.move));
        return false;
      }
      next.push_back(made);
    }
  }
  return !has_faults || list_worker_steps(node, next);
}

// Transfers between the same workers may change places.
uint64_t Search::fingerprint(const Node& given) const {
  Node node = given;
  for (int round = 1; round < num_transfers(); ++round) {
    for (int t = 0; t + 1 < num_transfers(); ++t) {
      if (scope_.transfers[t] != scope_.transfers[t + 1]) continue;
      if (node.locals[t] <= node.locals[t + 1]) continue;
      std::swap(node.locals[t], node.locals[t + 1]);
      for (Slot& slot : node.decodes[scope_.transfers[t].decode].slots) {
        if (slot.owner == t + 1 || slot.owner == t + 2) slot.owner = 2 * t + 3 - slot.owner;
      }
    }
  }
  uint64_t key = 0;
  for (const uint32_t local : node.locals) key = mix(key + local + 1);
  for (int worker = 0; worker < kMaxWorkers; ++worker) {
    const PrefillWorkerBits& p = node.prefills[worker];
    const DecodeWorkerBits& d = node.decodes[worker];
    const Pair pair{.p_epoch = static_cast<uint8_t>(p.is_second ? 2 : 1),
                    .p_draining = p.is_draining,
                    .d_epoch = static_cast<uint8_t>(d.is_second ? 2 : 1),
                    .d_draining = d.is_draining,
                    .room_used = d.room_used,
                    .slots = d.slots};
    key = mix(key + bits_of(pair) + 1);
  }
  return scope_.max_faults < 0 ? key : mix(key + static_cast<uint64_t>(node.faults));
}

std::string Search::report(const Node& node, const std::string& what) const {
  std::ostringstream out;
  out << what;
  for (int t = 0; t < num_transfers(); ++t) {
    out << "\n  transfer " << t << ": "
        << World::describe(*locals_[node.locals[t]], pair_of(node, t));
  }
  return out.str();
}

Found Search::search() {
  struct Origin {
    uint32_t parent = 0;
    Step2 step;
  };

  Seen seen;
  std::vector<Origin> origins;
  std::vector<std::pair<Node, uint32_t>> level = {{Node{}, 0}};
  std::vector<std::pair<Node, uint32_t>> below;
  std::vector<Next> next;
  seen.insert(fingerprint({}));
  if (scope_.keeps_traces) origins.push_back({});
  uint32_t last = 0;
  while (!level.empty() && found_.violation.empty()) {
    below.clear();
    for (const auto& [node, number] : level) {
      last = number;
      if (!comes_to_rest(node)) found_.violation = report(node, "this does not come to rest");
      if (!found_.violation.empty() || !list_next(node, next)) break;
      found_.num_edges += next.size();
      for (const Next& made : next) {
        if (!seen.insert(fingerprint(made.node))) continue;
        below.emplace_back(made.node, static_cast<uint32_t>(seen.size() - 1));
        if (scope_.keeps_traces) origins.push_back({.parent = number, .step = made.step});
      }
    }
    level.swap(below);
  }
  if (!found_.violation.empty() && scope_.keeps_traces) {
    std::string trace;
    for (uint32_t at = last; at != 0; at = origins[at].parent) {
      const Step2& step = origins[at].step;
      trace = "\n  " + std::to_string(step.transfer) + ": " + world_.describe(step.move) + trace;
    }
    found_.violation += "\nafter" + trace;
  }
  found_.num_states = seen.size();
  found_.num_locals = locals_.size();
  found_.num_messages = world_.num_messages();
  return found_;
}

Found Search::walk(uint64_t num_steps, uint64_t seed) {
  constexpr int kMostSteps = 400;
  std::mt19937_64 random(seed);
  std::vector<Next> next;
  std::vector<Step2> trace;
  Node node;
  for (uint64_t i = 0; i < num_steps && found_.violation.empty(); ++i) {
    if (!comes_to_rest(node)) found_.violation = report(node, "this does not come to rest");
    if (!found_.violation.empty() || !list_next(node, next)) break;
    ++found_.num_edges;
    if (next.empty() || trace.size() == kMostSteps) {
      node = {};
      trace.clear();
      continue;
    }
    // Faults are as likely as all else together only once in a while, or little would ever finish.
    const Next* chosen = &next[random() % next.size()];
    for (int tries = 0; tries < 3 && chosen->step.move.is_fault; ++tries) {
      chosen = &next[random() % next.size()];
    }
    node = chosen->node;
    trace.push_back(chosen->step);
  }
  if (!found_.violation.empty()) {
    found_.violation += "\nafter";
    for (const Step2& step : trace) {
      found_.violation +=
          "\n  " + std::to_string(step.transfer) + ": " + world_.describe(step.move);
    }
  }
  found_.num_states = num_steps;
  found_.num_locals = locals_.size();
  found_.num_messages = world_.num_messages();
  return found_;
}

}  // namespace

Found search(const Scope& scope) { return Search(scope).search(); }

Found walk(const Scope& scope, uint64_t num_steps, uint64_t seed) {
  return Search(scope).walk(num_steps, seed);
}

}  // namespace sluice::model
