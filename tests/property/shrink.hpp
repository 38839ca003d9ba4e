#pragma once
// Makes a failing case smaller, as long as it fails, and writes cases on one line.

#include <chrono>
#include <cstddef>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "property/cases.hpp"

namespace property {

/// Simpler variants of a case, the simplest first. A function of the case: so the numbers of those
/// taken, one after the other, lead from a case to its shrunk form.
inline std::vector<Case> simpler(const Case& from) {
  std::vector<Case> result;
  const auto edit = [&](auto&& change) {
    Case c = from;
    if (!change(c)) return;
    renumber(c);
    result.push_back(std::move(c));
  };
  const auto set = [&](auto member, auto value) {
    edit([&](Case& c) { return std::exchange(c.*member, value) != value; });
  };
  const auto option = [&](auto member, auto value) {
    edit([&](Case& c) { return std::exchange(c.options.*member, value) != value; });
  };

  for (std::size_t u = 0; u < from.units.size(); ++u) {
    edit([&](Case& c) {
      c.units.erase(c.units.begin() + static_cast<std::ptrdiff_t>(u));
      return true;
    });
  }
  for (int world = 1; world < from.world; world += world < 2 ? 1 : 2) set(&Case::world, world);
  if (from.steps > 1) set(&Case::steps, from.steps - 1);
  if (from.micro_steps > 1) set(&Case::micro_steps, from.micro_steps - 1);
  for (bool Case::*flag :
       {&Case::new_rate, &Case::evaluates, &Case::leases_twice, &Case::overlapping,
        &Case::two_forwards, &Case::other_order, &Case::skips_gradients, &Case::asks_twice,
        &Case::gradients_only, &Case::reduces_by_call, &Case::reshards_by_call,
        &Case::reads_gradients, &Case::sets_values, &Case::infinite}) {
    set(flag, false);
  }
  set(&Case::unused_unit, -1);
  for (std::size_t u = 0; u < from.units.size(); ++u) {
    for (std::size_t i = 0; i < from.units[u].tensors.size(); ++i) {
      edit([&](Case& c) {
        std::vector<int>& tensors = c.units[u].tensors;
        tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
        return true;
      });
    }
  }
  option(&tessera::Options::clip_norm, 0.0f);
  option(&tessera::Options::norm, tessera::NormKind::l2);
  option(&tessera::Options::accumulation, tessera::Accumulation::reduce_each);
  option(&tessera::Options::schedule, tessera::Schedule::sequential);
  option(&tessera::Options::prefetch_depth, 0);
  option(&tessera::Options::reductions_in_flight, 0);
  option(&tessera::Options::bucket_bytes, std::uint64_t{0});
  option(&tessera::Options::spare_slot_bytes, std::uint64_t{0});
  option(&tessera::Options::gradient_divisor, 0.0f);
  option(&tessera::Options::trace, false);
  set(&Case::poison, false);
  set(&Case::jitter_us, 0);
  set(&Case::rule, Rule::sgd);
  set(&Case::weight_decay, 0.0f);
  set(&Case::initial, Initial::function);
  edit([](Case& c) {
    const bool any = !c.options.groups.empty();
    c.options.groups.clear();
    for (TensorSpec& tensor : c.tensors) tensor.group = 0;
    return any;
  });
  for (std::size_t u = 0; u < from.units.size(); ++u) {
    edit([&](Case& c) { return std::exchange(c.units[u].options.outer, false); });
    edit([&](Case& c) { return std::exchange(c.units[u].options.override_reshard, false); });
  }
  for (std::size_t t = 0; t < from.tensors.size(); ++t) {
    const auto n = static_cast<std::int64_t>(from.tensors[t].elements());
    for (std::int64_t smaller : {std::int64_t{1}, n / 2, n / 64 * 64, n - 1}) {
      if (smaller < 1 || smaller >= n) continue;
      edit([&](Case& c) {
        c.tensors[t].shape = {smaller};
        return true;
      });
    }
    edit([&](Case& c) { return std::exchange(c.tensors[t].form, Form::pointer) != Form::pointer; });
  }
  return result;
}

inline std::string to_string(const Case& c) {
  static const char* const strategies[] = {"replicate", "zero1",      "zero2",
                                           "zero3",     "zero3-keep", "by-budget"};
  static const char* const precisions[] = {
      "fp32",         "bf16",      "bf16+fp32-gradients", "bf16-reduced",
      "split-master", "pure-bf16", "fp32+bf16-moments"};
  static const char* const rules[] = {"adamw", "lion", "sgd"};
  static const char* const types[] = {"f32", "bf16", "i64", "u8", "block16"};
  static const char* const reshards[] = {"after-forward", "after-backward", "after-step", "never"};
  const tessera::Options& o = c.options;
  std::ostringstream text;
  text << strategies[static_cast<int>(c.strategy)] << " x" << c.world << ' '
       << precisions[static_cast<int>(c.precision)] << ' ' << rules[static_cast<int>(c.rule)]
       << " steps " << c.steps << 'x' << c.micro_steps << (c.once() ? " reduce-once" : "")
       << (o.schedule == tessera::Schedule::sequential ? " sequential" : "") << " prefetch "
       << o.prefetch_depth << " in-flight " << o.reductions_in_flight << " bucket "
       << o.bucket_bytes << " clip " << o.clip_norm << " norm " << static_cast<int>(o.norm);
  if (o.prefetch_bytes < 1u << 30) text << " prefetch-bytes " << o.prefetch_bytes;
  if (c.strategy == Strategy::by_budget) text << " budget " << o.gathered_bytes;
  if (o.gradient_divisor > 0) text << " divisor " << o.gradient_divisor;
  if (c.poison) text << " poison";
  if (c.jitter_us > 0) text << " jitter " << c.jitter_us;
  const std::pair<bool, const char*> flags[] = {
      {c.new_rate, "new-rate"},         {c.evaluates, "evaluates"},
      {c.leases_twice, "leases-twice"}, {c.overlapping, "overlapping"},
      {c.two_forwards, "two-forwards"}, {c.other_order, "other-order"},
      {c.unused_unit >= 0, "unused"},   {c.skips_gradients, "skips-gradients"},
      {c.asks_twice, "asks-twice"},     {c.gradients_only, "gradients-only"},
      {c.reduces_by_call, "by-call"},   {c.reshards_by_call, "reshards-by-call"},
      {c.sets_values, "sets-values"},   {c.reads_gradients, "reads-gradients"},
      {c.infinite, "infinite"}};
  for (const auto& [is_on, name] : flags) {
    if (is_on) text << ' ' << name;
  }
  for (std::size_t u = 0; u < c.units.size(); ++u) {
    const tessera::UnitOptions& unit = c.units[u].options;
    text << (static_cast<int>(u) == c.unused_unit ? " | unused" : " |")
         << (unit.outer ? " outer" : "");
    if (unit.override_reshard) text << ' ' << reshards[static_cast<int>(unit.reshard)];
    for (int t : c.units[u].tensors) {
      const TensorSpec& tensor = c.tensors[static_cast<std::size_t>(t)];
      text << " t" << t << ':' << (tensor.trainable ? "" : "frozen-")
           << types[static_cast<int>(tensor.type)];
      for (std::int64_t extent : tensor.shape) text << 'x' << extent;
      if (tensor.form == Form::vector) text << "-copied";
    }
  }
  return text.str();
}

struct Shrunk {
  Case smallest;
  std::string failure;
  std::string path;  ///< the numbers of the variants taken
};

/// A failure without its numbers, to tell one fault from another.
inline std::string kind_of(const std::string& failure) {
  std::string kind;
  for (char c : failure) {
    if (kind.size() < 40 && (c < '0' || c > '9') && c != '-') kind += c;
  }
  return kind;
}

/// `failing(c)` is empty when the case passes. A case that depends on timing gets a few tries.
inline Shrunk shrink(const Case& c, const std::string& failure, std::chrono::seconds limit,
                     const std::function<std::string(const Case&)>& failing) {
  const auto end = std::chrono::steady_clock::now() + limit;
  Shrunk best{c, failure, ""};
  for (bool found = true; found;) {
    found = false;
    const std::vector<Case> variants = simpler(best.smallest);
    for (std::size_t i = 0; i < variants.size() && !found; ++i) {
      for (int attempt = 0; attempt < 3 && !found; ++attempt) {
        if (std::chrono::steady_clock::now() > end) return best;
        const std::string why = failing(variants[i]);
        if (why.empty() || kind_of(why) != kind_of(failure)) continue;
        best = {variants[i], why, best.path + (best.path.empty() ? "" : ".") + std::to_string(i)};
        found = true;
      }
    }
  }
  return best;
}

/// The case that a path leads to.
inline Case follow(Case c, const std::string& path) {
  std::istringstream numbers(path);
  std::string number;
  while (std::getline(numbers, number, '.')) {
    const std::vector<Case> variants = simpler(c);
    c = variants.at(std::stoul(number));
  }
  return c;
}

}  // namespace property
