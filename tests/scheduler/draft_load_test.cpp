// SPDX-License-Identifier: Apache-2.0
// What drafts give a loaded server, and that they never cost it much, on a simulated clock.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/scheduler/load_sim.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using Times = std::function<double(double now_ms, int64_t num_rows, int64_t num_draft_rows)>;

// SmolLM2-135M and a 1B model on a server CPU, an 8B model on a GPU, and rows that cost in tiles.
double small_model(double /*now_ms*/, int64_t rows, int64_t /*num_draft_rows*/) {
  const auto m = static_cast<double>(rows);
  return rows <= 1 ? 2.38 : 2.38 + 0.39 * (m - 1) + 0.0013 * m * m;
}

double model_of_1b(double /*now_ms*/, int64_t rows, int64_t /*num_draft_rows*/) {
  return 27.2 + 1.43 * static_cast<double>(rows - 1);
}

double on_a_gpu(double /*now_ms*/, int64_t rows, int64_t /*num_draft_rows*/) {
  return 8 + 0.04 * static_cast<double>(rows - 1);
}

double in_tiles(double /*now_ms*/, int64_t rows, int64_t /*num_draft_rows*/) {
  return 5 + 2 * static_cast<double>((rows + 7) / 8);
}

const struct {
  const char* name;
  Times times;
} kMachines[] = {
    {"135M", small_model}, {"1B", model_of_1b}, {"GPU", on_a_gpu}, {"tiles", in_tiles}};

struct Scenario {
  std::string name;
  LoadOptions options;
  std::vector<LoadClient> clients;
  double least_gain = 0.97;  // over no drafts
};

std::function<double(double, uint64_t)> always(double acceptance) {
  return [acceptance](double, uint64_t) { return acceptance; };
}

// Some 8,000 steps of a server whose `num_streams` requests decode with short prompts.
Scenario scenario(std::string name, const Times& times, int32_t num_streams, double acceptance) {
  Scenario s{.name = std::move(name), .options = {}, .clients = {}};
  s.options.scheduler = {.max_num_seqs = 64,
                         .max_num_batched_tokens = 512,
                         .max_chosen_rows = 512,
                         .max_num_queued_reqs = 1024,
                         .max_model_len = 1024,
                         .speculation = {.max_tokens = 8}};
  s.options.scheduler.step_target_ms = 0;
  s.options.rows_ms = times;
  s.options.prompt_token_ms = 0.05;
  s.options.noise = 0.05;
  s.options.seconds = 8 * times(0, num_streams, 0);
  s.options.drafts = {.num_tokens = 8, .acceptance = always(acceptance)};
  s.clients = {{.num_streams = num_streams, .num_prompt = 32, .num_output = 256}};
  return s;
}

void add_steady(std::vector<Scenario>& list) {
  for (const auto& machine : kMachines) {
    for (const int32_t c : {1, 8, 64}) {
      for (const int acceptance : {0, 15, 30, 60, 90}) {
        list.push_back(scenario(std::string(machine.name) + " c" + std::to_string(c) + " " +
                                    std::to_string(acceptance) + "%",
                                machine.times,
                                c,
                                acceptance / 100.0));
        if (c == 1 && acceptance >= 60) list.back().least_gain = acceptance == 60 ? 1.4 : 2.4;
        if (c == 8 && acceptance == 90) list.back().least_gain = 1.1;
      }
    }
  }
}

void add_models(std::vector<Scenario>& list) {
  for (const int32_t c : {1, 8}) {
    for (const int acceptance : {0, 10, 40, 70}) {
      for (size_t m : {0U, 2U}) {
        Scenario s = scenario(std::string("head ") + kMachines[m].name + " c" + std::to_string(c) +
                                  " " + std::to_string(acceptance) + "%",
                              kMachines[m].times,
                              c,
                              acceptance / 100.0);
        s.options.drafts.source = DraftSource::kEagle;
        s.options.drafts.propose_ms = m == 0 ? 0.2 : 0.4;
        list.push_back(s);
      }
    }
  }
  for (const int acceptance : {0, 60}) {
    Scenario s = scenario(
        "slow proposer " + std::to_string(acceptance) + "%", small_model, 8, acceptance / 100.0);
    s.options.drafts.propose_ms = 0.05;  // 8 % of a step
    list.push_back(s);
  }
}

void add_drifts(std::vector<Scenario>& list) {
  for (const int acceptance : {0, 20, 60}) {
    const auto add = [&](const std::string& name, const Times& times) {
      Scenario s = scenario(
          name + " " + std::to_string(acceptance) + "%", small_model, 4, acceptance / 100.0);
      s.options.rows_ms = times;
      list.push_back(s);
    };
    for (const double period_s : {1.0, 8.0}) {
      add("sine " + std::to_string(static_cast<int>(period_s)) + " s",
          [=](double now_ms, int64_t rows, int64_t drafts) {
            return small_model(now_ms, rows, drafts) *
                   (1 + 0.5 * std::sin(now_ms * 2 * M_PI / (1000 * period_s)));
          });
    }
    add("twice as slow", [](double now_ms, int64_t rows, int64_t drafts) {
      return small_model(now_ms, rows, drafts) * (now_ms > 8000 ? 2 : 1);
    });
    add("twice as fast", [](double now_ms, int64_t rows, int64_t drafts) {
      return small_model(now_ms, rows, drafts) * (now_ms > 8000 ? 0.5 : 1);
    });
    add("rows get dear", [](double now_ms, int64_t rows, int64_t) {
      return 4 + static_cast<double>(rows) * (std::fmod(now_ms, 8000) > 4000 ? 1.2 : 0.1);
    });
    add("drafts cost 40% more", [](double now_ms, int64_t rows, int64_t drafts) {
      return small_model(now_ms, rows, drafts) * (drafts > 0 ? 1.4 : 1);
    });
    add("drafts cost half more on a GPU, in turns",
        [](double now_ms, int64_t rows, int64_t drafts) {
          return on_a_gpu(now_ms, rows, drafts) *
                 (drafts > 0 && std::fmod(now_ms, 3000) > 1500 ? 1.5 : 1);
        });
  }
}

void add_batches(std::vector<Scenario>& list) {
  for (const auto& machine : kMachines) {
    for (const int acceptance : {0, 30, 80}) {
      const std::string tail = std::string(machine.name) + " " + std::to_string(acceptance) + "%";
      Scenario paused = scenario("pauses " + tail, machine.times, 16, acceptance / 100.0);
      paused.clients = {{.num_streams = 2, .num_prompt = 32, .num_output = 256},
                        {.num_streams = 30,
                         .pause_ms = 150 * machine.times(0, 8, 0),
                         .num_prompt = 64,
                         .num_output = 100,
                         .mean_answer = 60}};
      list.push_back(paused);
      Scenario crowd = scenario("crowd leaves " + tail, machine.times, 16, acceptance / 100.0);
      crowd.clients = {{.num_streams = 1, .num_prompt = 32, .num_output = 512},
                       {.num_streams = 60,
                        .until_s = crowd.options.seconds / 3,
                        .num_prompt = 64,
                        .num_output = 200}};
      list.push_back(crowd);
      Scenario waves = scenario("waves " + tail, machine.times, 1, acceptance / 100.0);
      waves.options.seconds *= 3;
      waves.clients = {{.num_streams = 1, .num_prompt = 32, .num_output = 512}};
      for (int i = 0; i < 6; ++i) {
        // All of a wave's requests are there at once, and end at nearly the same time.
        waves.clients.push_back(
            {.num_streams = 24, .pause_ms = 0, .num_prompt = 64, .num_output = 40 + 40 * i});
        waves.clients.back().until_s = waves.options.seconds * 0.05;
      }
      list.push_back(waves);
    }
  }
}

void add_noises(std::vector<Scenario>& list) {
  for (const auto& machine : kMachines) {
    for (const int32_t c : {1, 8, 32}) {
      for (const int acceptance : {0, 15, 50}) {
        const std::string tail = std::string(machine.name) + " c" + std::to_string(c) + " " +
                                 std::to_string(acceptance) + "%";
        Scenario s = scenario("noise " + tail, machine.times, c, acceptance / 100.0);
        s.options.noise = 0.3;
        s.options.slow_share = 0.005;
        list.push_back(s);
        if (c == 32) continue;
        s.name = "tenth slow " + tail;
        s.options.slow_share = 0.1;
        list.push_back(s);
        s.name = "pauses of 20 steps " + tail;
        s.options.slow_share = 0.005;
        s.options.slowdown = 20;
        list.push_back(s);
      }
    }
  }
}

void add_turns(std::vector<Scenario>& list) {
  for (const auto& machine : kMachines) {
    for (const double steps : {20.0, 300.0, 2000.0}) {
      for (const int32_t c : {1, 8}) {
        const double period = steps * machine.times(0, c, 0);
        Scenario s = scenario("turns of " + std::to_string(static_cast<int>(steps)) + " " +
                                  machine.name + " c" + std::to_string(c),
                              machine.times,
                              c,
                              0);
        s.options.drafts.acceptance = [period](double now_ms, uint64_t) {
          return std::fmod(now_ms, 2 * period) < period ? 0.9 : 0.0;
        };
        list.push_back(s);
      }
    }
    Scenario half =
        scenario(std::string("every other request ") + machine.name, machine.times, 8, 0);
    half.options.drafts.acceptance = [](double, uint64_t id) { return id % 2 == 0 ? 0.85 : 0.02; };
    list.push_back(half);
    Scenario rare =
        scenario(std::string("a fifth of the text ") + machine.name, machine.times, 4, 0.8);
    rare.options.drafts.offered = 0.2;
    list.push_back(rare);
    Scenario never =
        scenario(std::string("a fifth, wrong ") + machine.name, machine.times, 4, 0.02);
    never.options.drafts.offered = 0.2;
    list.push_back(never);
    Scenario turns_good = scenario(std::string("turns good ") + machine.name, machine.times, 4, 0);
    const double begin = 500 * turns_good.options.seconds;
    turns_good.options.drafts.acceptance = [begin](double now_ms, uint64_t) {
      return now_ms > begin ? 0.9 : 0.0;
    };
    list.push_back(turns_good);
    Scenario prompts = scenario(std::string("prompts ") + machine.name, machine.times, 8, 0.7);
    prompts.clients = {{.num_streams = 8, .num_prompt = 512, .num_output = 64}};
    list.push_back(prompts);
  }
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> list;
  add_steady(list);
  add_models(list);
  add_drifts(list);
  add_batches(list);
  add_noises(list);
  add_turns(list);
  return list;
}

// SLUICE_FULL=1: all scenarios with three seeds each; otherwise some, with one. The gains are
// properties of the report.
TEST(DraftLoad, DraftsNeverCostMuchAndGainWhereTheyAreRight) {
  const std::vector<Scenario> list = scenarios();
  const size_t stride = testing::is_full() ? 1 : 7;
  const uint64_t num_seeds = testing::is_full() ? 3 : 1;
  for (size_t i = 0; i < list.size(); i += stride) {
    double sum = 0;
    for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
      Scenario s = list[i];
      s.options.seed = seed;
      LoadSteps steps;
      run_load(s.options, s.clients, &steps);
      EXPECT_GE(steps.gain(), s.least_gain) << s.name << ", seed " << seed;
      sum += steps.gain();
    }
    RecordProperty(list[i].name, std::to_string(sum / static_cast<double>(num_seeds)));
  }
}

}  // namespace
}  // namespace sluice
